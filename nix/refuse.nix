# Stops the evaluation as envbuild's commands stop: what is wrong, where, and what to do next.
{
  what,
  where ? null,
  expected ? null,
  found ? null,
  mend ? null,
}:
let
  show = value: if builtins.isString value then value else builtins.toJSON value;
  line = label: value: if value == null then "" else "\n  ${label}: ${show value}";
in
throw (
  "envbuild: "
  + (if where == null then what else "${where}: ${what}")
  + line "expected" expected
  + line "found" found
  + line "mend" mend
)
