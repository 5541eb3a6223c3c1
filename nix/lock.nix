# Reads a lock (PEP 751 and envbuild's own table) at evaluation.
#
# What is refused here is what would be fetched wrongly or not at all; envbuild reads the lock again
# when it builds the image, and holds it to everything else.
let
  refuse = import ./refuse.nix;
  schema = 1;
  version = "1.0";
  normalized = import ./normalized.nix;
in
{
  # the environment
  name,
  # the lock's path
  file ? null,
  # what it holds
  text ?
    if builtins.pathExists file then
      builtins.readFile file
    else
      refuse {
        what = "${name} has no lock";
        where = "locks/pylock.${name}.toml";
        mend = "run `envbuild lock ${name}`";
      },
}:
let
  where = "locks/pylock.${name}.toml";
  wrong =
    fields:
    refuse (
      {
        inherit where;
        mend = mend;
      }
      // fields
    );
  mend =
    "restore it from version control, or resolve anew: "
    + "`envbuild lock --upgrade ${name}` as of today";
  document = import ./toml.nix { inherit where text mend; };
  tool = document.tool.envbuild or { };
  known =
    key: expected: found:
    found == expected
    || refuse {
      inherit where expected found;
      what = "${key}: not a version that this envbuild reads";
      mend = "use the envbuild that wrote it";
    };

  artifact =
    key: entry:
    let
      matched = builtins.match "[.][.]/wheelhouse/([a-zA-Z0-9_][a-zA-Z0-9_.+!-]*)" entry.path;
      sha256 = entry.hashes.sha256 or null;
    in
    if matched == null then
      wrong {
        what = "${key}.path: not a file of the wheelhouse";
        expected = "../wheelhouse/FILE";
        found = entry.path;
      }
    else if !builtins.isString sha256 || builtins.match "[0-9a-f]{64}" sha256 == null then
      wrong {
        what = "${key}.hashes.sha256: not a SHA-256";
        expected = "64 lower-case hexadecimal digits";
        found = sha256;
      }
    else
      {
        file = builtins.head matched;
        inherit sha256;
      };

  package =
    entry:
    let
      files = entry.wheels or [ ] ++ (if entry ? sdist then [ entry.sdist ] else [ ]);
      one = artifact entry.name (builtins.head files);
      named =
        if isSdist then
          (import ./sdist-name.nix one.file).pname
        else
          (import ./wheel-name.nix one.file).pname;
      isSdist = entry ? sdist;
    in
    if builtins.length files != 1 then
      wrong {
        what = "${entry.name} does not have exactly one file";
        expected = "one wheel or one sdist";
        found = builtins.length files;
      }
    else if normalized named != entry.name then
      wrong {
        what = "${entry.name}: the file of another package";
        expected = entry.name;
        found = one.file;
      }
    else
      one
      // {
        inherit isSdist;
        inherit (entry) name;
        # whether it depends on the interpreter that it is installed at all
        conditional = entry ? marker;
      };

  packages = map package (document.packages or [ ]);
  isBuilt = one: one.isSdist && built ? ${one.name};
  built = builtins.mapAttrs (key: entry: artifact "tool.envbuild.built.${key}.wheel" entry.wheel) (
    tool.built or { }
  );
  checked =
    known "lock-version" version (document.lock-version or null)
    && known "tool.envbuild.schema" schema (tool.schema or null);
in
assert checked;
{
  # wheels that an index has
  wheels = builtins.filter (one: !one.isSdist) packages;
  # sdists of pure Python: each with the wheel that its build gives
  pure = map (one: one // { wheel = built.${one.name}; }) (builtins.filter isBuilt packages);
  # packages that are built on the target system; no image is made of them without their wheels
  unbuilt = map (one: one.name) (
    builtins.filter (one: one.isSdist && !isBuilt one && !one.conditional) packages
  );
  # what building sdists needs
  buildWheels = builtins.concatMap (
    one: map (artifact "tool.envbuild.build-environments.wheels") one.wheels
  ) (tool.build-environments or [ ]);
  # a tag for what is made of this lock
  tag = builtins.substring 0 12 (builtins.hashString "sha256" text);
}
