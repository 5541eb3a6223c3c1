# Runs the tests that stand beside these files: each NAME.test.nix is a list of
# { name; expr; expected; }, or { name; fails; } for what must be refused.
#
# Evaluates to the number of tests; where one fails, the evaluation stops and says which.
let
  files = builtins.filter (file: builtins.match ".*[.]test[.]nix" file != null) (
    builtins.attrNames (builtins.readDir ./.)
  );
  run =
    file: test:
    let
      tried = builtins.tryEval (builtins.deepSeq test.fails null);
      right = if test ? fails then !tried.success else test.expr == test.expected;
      show =
        if test ? fails then
          "  expected: an error"
        else
          "  expected: ${builtins.toJSON test.expected}\n  found: ${builtins.toJSON test.expr}";
    in
    if right then 1 else throw "nix/${file}: ${test.name}\n${show}";
  results = builtins.concatMap (file: map (run file) (import (./. + "/${file}"))) files;
in
builtins.foldl' builtins.add 0 results
