"""A Model Context Protocol server: coding agents ask about jobs, and change nothing."""
