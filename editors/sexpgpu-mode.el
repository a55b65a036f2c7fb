;;; sexpgpu-mode.el --- Experiments in .sx files  -*- lexical-binding: t -*-

;; (load "…/editors/sexpgpu-mode.el"), then open an .sx file and M-x eglot, or add a hook:
;; (add-hook 'sexpgpu-mode-hook #'eglot-ensure)

;;; Code:

(define-derived-mode sexpgpu-mode lisp-data-mode "sexpgpu"
  "Experiments of sexpgpu.")

(add-to-list 'auto-mode-alist '("\\.sx\\'" . sexpgpu-mode))

(with-eval-after-load 'eglot
  (add-to-list 'eglot-server-programs '(sexpgpu-mode . ("sexpgpu" "lsp"))))

(provide 'sexpgpu-mode)
;;; sexpgpu-mode.el ends here
