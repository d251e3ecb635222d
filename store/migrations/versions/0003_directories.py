"""Check projects' local directories; find what uses a directory."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_LOCAL = sa.text("kind = 'local_directory'")
_UNCHECKED = sa.text("kind = 'local_directory' and checked_at is null")
_SEED = sa.text("directory_id is not null")


def upgrade() -> None:
    op.add_column("project_resources", sa.Column("checked_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("project_resources", sa.Column("directory_id", sa.UUID(), nullable=True))
    op.add_column("project_resources", sa.Column("refusal", sa.String(), nullable=True))
    op.create_foreign_key(
        op.f("fk_project_resources_directory_id"),
        "project_resources",
        "directories",
        ["directory_id"],
        ["id"],
        ondelete="SET NULL",
    )
    op.create_index(
        "uq_project_resources_local",
        "project_resources",
        ["project_id", "runtime_id"],
        unique=True,
        postgresql_where=_LOCAL,
    )
    op.create_index(
        "ix_project_resources_unchecked", "project_resources", ["runtime_id"], postgresql_where=_UNCHECKED
    )
    op.create_index(op.f("ix_attempts_directory_id_id"), "attempts", ["directory_id", "id"])
    op.create_index(op.f("ix_sessions_directory_id"), "sessions", ["directory_id"])
    op.create_index(
        op.f("ix_lane_sessions_directory_id"), "lane_sessions", ["directory_id"], postgresql_where=_SEED
    )


def downgrade() -> None:
    op.drop_index(op.f("ix_lane_sessions_directory_id"), table_name="lane_sessions")
    op.drop_index(op.f("ix_sessions_directory_id"), table_name="sessions")
    op.drop_index(op.f("ix_attempts_directory_id_id"), table_name="attempts")
    op.drop_index("ix_project_resources_unchecked", table_name="project_resources")
    op.drop_index("uq_project_resources_local", table_name="project_resources")
    op.drop_constraint(op.f("fk_project_resources_directory_id"), "project_resources", type_="foreignkey")
    op.drop_column("project_resources", "refusal")
    op.drop_column("project_resources", "directory_id")
    op.drop_column("project_resources", "checked_at")
