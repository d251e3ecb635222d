"""Chats: the order of messages, contexts that sessions never cross, and seeds without a session."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_SEED = sa.text("source_task_id is not null")


def upgrade() -> None:
    for table in ("lanes", "tasks", "directories", "lane_sessions"):
        op.add_column(table, sa.Column("context", sa.Integer(), server_default="0", nullable=False))
    op.add_column("lanes", sa.Column("message_seq", sa.BigInteger(), server_default="0", nullable=False))
    _seeds_without_a_session()
    op.drop_column("chats", "last_read_at")
    op.add_column("chats", sa.Column("last_read_seq", sa.BigInteger(), server_default="0", nullable=False))
    _order_messages()


def _seeds_without_a_session() -> None:
    op.drop_constraint("pk_lane_sessions", "lane_sessions", type_="primary")
    op.add_column(
        "lane_sessions",
        sa.Column("id", sa.UUID(), server_default=sa.text("gen_random_uuid()"), nullable=False),
    )
    op.create_primary_key("pk_lane_sessions", "lane_sessions", ["id"])
    op.alter_column("lane_sessions", "session_id", nullable=True)
    op.create_unique_constraint(
        op.f("uq_lane_sessions_lane_id_session_id"), "lane_sessions", ["lane_id", "session_id"]
    )
    op.create_index(
        "uq_lane_sessions_seed", "lane_sessions", ["lane_id"], unique=True, postgresql_where=_SEED
    )


def _order_messages() -> None:
    op.drop_index(op.f("ix_messages_chat_id_created_at_id"), table_name="messages")
    # No version that wrote messages was released: the defaults are for the columns alone.
    op.add_column("messages", sa.Column("seq", sa.BigInteger(), server_default="0", nullable=False))
    op.add_column("messages", sa.Column("turn", sa.BigInteger(), server_default="0", nullable=False))
    op.add_column("messages", sa.Column("part", sa.SmallInteger(), server_default="0", nullable=False))
    op.add_column("messages", sa.Column("state", sa.String(), server_default="shown", nullable=False))
    for column in ("seq", "turn", "part"):
        op.alter_column("messages", column, server_default=None)
    op.create_index(op.f("ix_messages_chat_id_seq"), "messages", ["chat_id", "seq"], unique=True)
    op.create_index(op.f("ix_messages_chat_id_turn_part_seq"), "messages", ["chat_id", "turn", "part", "seq"])
    op.create_index(
        op.f("ix_messages_task_id"),
        "messages",
        ["task_id"],
        postgresql_where=sa.text("task_id is not null"),
    )


def downgrade() -> None:
    op.drop_index(op.f("ix_messages_task_id"), table_name="messages")
    op.drop_index(op.f("ix_messages_chat_id_turn_part_seq"), table_name="messages")
    op.drop_index(op.f("ix_messages_chat_id_seq"), table_name="messages")
    for column in ("state", "part", "turn", "seq"):
        op.drop_column("messages", column)
    op.create_index(op.f("ix_messages_chat_id_created_at_id"), "messages", ["chat_id", "created_at", "id"])
    op.drop_column("chats", "last_read_seq")
    op.add_column("chats", sa.Column("last_read_at", sa.DateTime(timezone=True), nullable=True))
    op.execute("delete from lane_sessions where session_id is null")
    op.drop_index("uq_lane_sessions_seed", table_name="lane_sessions")
    op.drop_constraint(op.f("uq_lane_sessions_lane_id_session_id"), "lane_sessions", type_="unique")
    op.alter_column("lane_sessions", "session_id", nullable=False)
    op.drop_constraint("pk_lane_sessions", "lane_sessions", type_="primary")
    op.drop_column("lane_sessions", "id")
    op.create_primary_key("pk_lane_sessions", "lane_sessions", ["lane_id", "session_id"])
    op.drop_column("lanes", "message_seq")
    for table in ("lane_sessions", "directories", "tasks", "lanes"):
        op.drop_column(table, "context")
