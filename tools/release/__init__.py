"""What is handed out: wheel and sdist, looked into and tried in clean environments (`make dist`)."""
