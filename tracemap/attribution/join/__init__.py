"""The dispatch site of each event, from the run's header and the map: align buffers, follow the schedule."""
