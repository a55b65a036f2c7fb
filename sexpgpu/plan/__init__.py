"""Planning: order, memory and admission of a program, the same for every device."""
