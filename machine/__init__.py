"""The agent machine: processes, files, directories and the runtime plane. No Temporal in here."""
