let
  storeName = import ./store-name.nix;
in
[
  {
    name = "a wheel's name is its own";
    expr = storeName "torch-2.8.0+cu128-cp310-cp310-linux_x86_64.whl";
    expected = "torch-2.8.0+cu128-cp310-cp310-linux_x86_64.whl";
  }
  {
    name = "Debian's tilde";
    expr = storeName "ca-certificates_20250419~deb12u2_all.deb";
    expected = "ca-certificates_20250419-deb12u2_all.deb";
  }
  {
    name = "an epoch";
    expr = storeName "thing-1!2.0-py3-none-any.whl";
    expected = "thing-1-2.0-py3-none-any.whl";
  }
  {
    name = "several in a row are one";
    expr = storeName "thing_1.0~~rc1_all.deb";
    expected = "thing_1.0-rc1_all.deb";
  }
]
