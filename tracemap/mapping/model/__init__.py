"""What is known of the input model alone: data flow, origins, twins, idioms, scopes."""
