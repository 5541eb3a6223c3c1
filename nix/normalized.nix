# A project's name as it is compared: lower case, runs of "-", "_" and "." as one "-" (PEP 503).
let
  characters =
    text: builtins.filter (one: builtins.isString one && one != "") (builtins.split "" text);
  small = builtins.replaceStrings (characters "ABCDEFGHIJKLMNOPQRSTUVWXYZ") (
    characters "abcdefghijklmnopqrstuvwxyz"
  );
in
name:
builtins.concatStringsSep "-" (
  builtins.filter builtins.isString (builtins.split "[-_.]+" (small name))
)
