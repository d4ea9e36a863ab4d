"""Tables and pages made from results; decides nothing and runs nothing."""
