-- The history of a busy workspace: all tasks have ended, and on each lane another one is queued.
-- Ids are made of numbers, so that no row has to be looked up; constraints are not checked, which
-- would take most of the time. :lanes and :each (tasks a lane) are replaced by numbers.
set session_replication_role = replica;
set synchronous_commit = off;
create function pg_temp.make(kind int, number bigint) returns uuid language sql immutable as
    $$ select (lpad(to_hex(kind), 8, '0') || lpad(to_hex(number), 24, '0'))::uuid $$;
insert into workspaces (id, name, slug, issue_prefix) values (pg_temp.make(1, 1), 'Bench', 'bench', 'BEN');
insert into runtimes (id, workspace_id, name, slots, online, last_seen_at)
    values (pg_temp.make(2, 1), pg_temp.make(1, 1), 'machine', 500, true, now());
insert into agents (id, workspace_id, name, provider, runtime_id, max_concurrent_tasks)
    select pg_temp.make(3, n), pg_temp.make(1, 1), 'Agent ' || n, 'script', pg_temp.make(2, 1), 500
    from generate_series(0, 9) n;
insert into issues (id, workspace_id, number, title, creator_type)
    select pg_temp.make(4, n), pg_temp.make(1, 1), n + 1, 'An issue', 'member' from generate_series(0, :lanes - 1) n;
insert into lanes (id, workspace_id, kind, agent_id, issue_id, last_position)
    select pg_temp.make(5, n), pg_temp.make(1, 1), 'issue', pg_temp.make(3, n % 10), pg_temp.make(4, n), :each + 1
    from generate_series(0, :lanes - 1) n;
insert into directories (id, workspace_id, runtime_id, lane_id, path, device, inode)
    select pg_temp.make(6, n), pg_temp.make(1, 1), pg_temp.make(2, 1), pg_temp.make(5, n), '/d/' || n, 1, n
    from generate_series(0, :lanes - 1) n;
insert into sessions (id, workspace_id, provider, provider_session_id, runtime_id, lane_id, directory_id,
                      last_status, last_reason, last_ended_at)
    select pg_temp.make(7, n), pg_temp.make(1, 1), 'script', 's' || n, pg_temp.make(2, 1), pg_temp.make(5, n),
           pg_temp.make(6, n), 'completed', 'completed', now() from generate_series(0, :lanes - 1) n;
insert into lane_sessions (lane_id, session_id)
    select pg_temp.make(5, n), pg_temp.make(7, n) from generate_series(0, :lanes - 1) n;
insert into tasks (id, workspace_id, lane_id, lane_position, rank, kind, trigger_type, agent_id, runtime_id,
                   issue_id, status, attempt, reason, dispatched_at, started_at, ended_at)
    select pg_temp.make(8, n), pg_temp.make(1, 1), pg_temp.make(5, n / :each), n % :each + 1, now(), 'issue', 'comment',
           pg_temp.make(3, (n / :each) % 10), pg_temp.make(2, 1), pg_temp.make(4, n / :each), 'completed', 1,
           'completed', now(), now(), now() from generate_series(0, :lanes * :each - 1) n;
insert into attempts (id, workspace_id, task_id, number, provider, runtime_id, ops_queue, runs_queue, directory_id,
                      used_session_id, continuity, dispatched_at, started_at, ended_at, reason)
    select pg_temp.make(9, n), pg_temp.make(1, 1), pg_temp.make(8, n), 1, 'script', pg_temp.make(2, 1), 'ops', 'runs',
           pg_temp.make(6, n / :each), pg_temp.make(7, n / :each), 'resumed', now(), now(), now(), 'completed'
    from generate_series(0, :lanes * :each - 1) n;
insert into tasks (id, workspace_id, lane_id, lane_position, rank, kind, trigger_type, agent_id, runtime_id, issue_id)
    select pg_temp.make(10, n), pg_temp.make(1, 1), pg_temp.make(5, n), :each + 1, now(), 'issue', 'comment',
           pg_temp.make(3, n % 10), pg_temp.make(2, 1), pg_temp.make(4, n) from generate_series(0, :lanes - 1) n;
