-- In init.lua: dofile("…/editors/neovim.lua"). Neovim 0.8 or newer.
vim.filetype.add({ extension = { sx = "sexpgpu" } })

vim.api.nvim_create_autocmd("FileType", {
  pattern = "sexpgpu",
  callback = function(event)
    vim.bo[event.buf].commentstring = "; %s"
    vim.bo[event.buf].lisp = true
    vim.lsp.start({
      name = "sexpgpu",
      cmd = { "sexpgpu", "lsp" },
      root_dir = vim.fs.dirname(vim.api.nvim_buf_get_name(event.buf)),
    })
  end,
})
