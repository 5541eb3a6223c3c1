# Reads a TOML file of a project, and names it where it is none.
let
  refuse = import ./refuse.nix;
in
{
  # its path in the project, for messages
  where,
  # what it holds
  text,
  # what to do about one that cannot be read
  mend,
}:
let
  # what a merge leaves, the most frequent reason by far
  conflict = builtins.any (line: builtins.match "(<<<<<<<|>>>>>>>).*" line != null) (
    builtins.filter builtins.isString (builtins.split "\n" text)
  );
in
if conflict then
  refuse {
    inherit where mend;
    what = "holds the marks of a merge that was not finished";
  }
else
  builtins.addErrorContext "while reading ${where}" (builtins.fromTOML text)
