"""Sites and what works in them: members and their evidence, cost, steps, schedules."""
