"""The language server: `analysis` and what it stands on are functions of texts, `server` speaks the protocol."""
