"""Find an agent's tasks that wait for a quota."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index(
        "ix_tasks_quota",
        "tasks",
        ["agent_id", "retry_at"],
        postgresql_where=sa.text("status = 'waiting_quota'"),
    )


def downgrade() -> None:
    op.drop_index("ix_tasks_quota", table_name="tasks")
