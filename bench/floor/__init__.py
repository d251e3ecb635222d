"""The floors: T, a no-op workflow with a task's steps, and S, the bare spawn of the agent's process."""
