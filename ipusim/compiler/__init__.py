"""What Poplar and poplibs would do with a graph: plans, codelets, supersteps, memory."""
