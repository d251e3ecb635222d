"""Keep with an attempt which provider it runs."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

# What it ran is known from its session; without one the agent's provider is the best guess there is.
_FILL = """
update attempts set provider = coalesce(
    (select sessions.provider from sessions
     where sessions.id = coalesce(attempts.used_session_id, attempts.requested_session_id)),
    (select agents.provider from agents join tasks on tasks.agent_id = agents.id
     where tasks.id = attempts.task_id))
"""


def upgrade() -> None:
    op.add_column("attempts", sa.Column("provider", sa.String(), nullable=True))
    op.execute(_FILL)
    op.alter_column("attempts", "provider", nullable=False)


def downgrade() -> None:
    op.drop_column("attempts", "provider")
