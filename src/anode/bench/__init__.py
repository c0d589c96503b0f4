"""``anode bench speed``: times anode against other libraries."""
