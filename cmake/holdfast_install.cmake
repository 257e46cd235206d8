# Placeholder of the install rules; see the rails.
