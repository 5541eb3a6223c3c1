# A stand-in for nixpkgs, where that cannot be reached: `envbuild nix stand-in FOLDER` copies this
# file into FOLDER as flake.nix, beside the programs of the machine that it is about.
#
# It is: the attributes that this project's flake uses, for x86_64-linux, with what nixpkgs means by
# them. The Python is that of the machine, with envbuild's own requirements; bash and busybox are
# Debian's static programs. Builds are sandboxed, and their outputs refer to nothing outside the store.
#
# It is not: a channel that something else could be built from. There is no compiler, coreutils are
# busybox's and know fewer options, nothing can be fetched (`envbuild nix preload` puts files into
# the store), scripts are not held to shellcheck, and skopeo is the machine's own, so that it only
# runs outside of builds.
{
  description = "A stand-in for nixpkgs, made of what one machine has";

  outputs =
    { self }:
    let
      system = "x86_64-linux";
      facts = builtins.fromJSON (builtins.readFile ./stand-in.json);

      # nixpkgs' derivations know more than what is built
      derive =
        attributes:
        let
          passthru = attributes.passthru or { };
          built = builtins.removeAttrs attributes [
            "passthru"
            "meta"
          ];
        in
        derivation (built // { inherit system; })
        // passthru
        // {
          inherit passthru;
          meta = attributes.meta or { };
        };

      bash = derive {
        name = "bash";
        builder = "${self}/bin/bash";
        args = [
          "-euc"
          ''
            ${self}/bin/busybox mkdir -p $out/bin
            ${self}/bin/busybox cp ${self}/bin/bash $out/bin/bash
            ${self}/bin/busybox ln -s bash $out/bin/sh
          ''
        ];
        meta.mainProgram = "bash";
      };

      # what nixpkgs' builds find on PATH, as far as busybox has it
      coreutils = derive {
        name = "busybox";
        builder = "${self}/bin/bash";
        args = [
          "-euc"
          ''
            ${self}/bin/busybox mkdir -p $out/bin
            ${self}/bin/busybox cp ${self}/bin/busybox $out/bin/busybox
            for name in $applets; do
              ${self}/bin/busybox ln -s busybox $out/bin/$name
            done
          ''
        ];
        applets = [
          "[ awk base64 basename bunzip2 bzcat bzip2 cat chgrp chmod chown cmp cp cut date dd df diff"
          "dirname du echo egrep env expand expr factor false fgrep find fold grep groups gunzip gzip"
          "head hostid id kill link ln ls md5sum mkdir mkfifo mknod mktemp mv nice nl nohup nproc od"
          "paste patch printenv printf pwd readlink realpath rm rmdir sed seq sha1sum sha256sum"
          "sha512sum shred shuf sleep sort stat stty sum sync tac tail tar tee test timeout touch tr"
          "true truncate tty uname unexpand uniq unlink unxz uptime wc who whoami xargs xz xzcat yes zcat"
        ];
      };

      # what a build begins with, and `nix develop` too
      stdenv = derive {
        name = "stdenv";
        builder = "${bash}/bin/bash";
        args = [
          "-euc"
          ''
            ${coreutils}/bin/mkdir $out
            printf %s "$setup" > $out/setup
          ''
        ];
        setup = ''
          set -o pipefail
          shopt -s inherit_errexit
          PATH=
          for folder in ''${nativeBuildInputs-} ${bash} ${coreutils}; do
            PATH=$PATH''${PATH:+:}$folder/bin
          done
          export PATH
        '';
        passthru.hostPlatform = { inherit system; };
      };

      builder = builtins.toFile "builder.sh" ''
        source $stdenv/setup
        set -u
        source $buildCommandPath
      '';

      runCommand =
        name: attributes: buildCommand:
        derive (
          {
            inherit name stdenv buildCommand;
            outputs = [ "out" ];
            builder = "${bash}/bin/bash";
            args = [
              "-e"
              builder
            ];
          }
          // attributes
          // {
            passAsFile = [ "buildCommand" ] ++ attributes.passAsFile or [ ];
          }
        );

      linkFarm =
        name: entries:
        runCommand name { } ''
          mkdir -p $out
          cd $out
          ${builtins.concatStringsSep "\n" (
            map (entry: ''
              mkdir -p "$(dirname ${quoted entry.name})"
              ln -sfn ${quoted "${entry.path}"} ${quoted entry.name}
            '') entries
          )}
        '';
      quoted = text: "'${builtins.replaceStrings [ "'" ] [ "'\\''" ] text}'";

      writeShellApplication =
        {
          name,
          text,
          runtimeInputs ? [ ],
        }:
        runCommand name
          {
            script = ''
              #!${bash}/bin/bash
              set -o errexit
              set -o nounset
              set -o pipefail
              export PATH="${builtins.concatStringsSep "" (map (one: "${one}/bin:") runtimeInputs)}$PATH"

              ${text}
            '';
            passAsFile = [ "script" ];
            meta.mainProgram = name;
          }
          ''
            mkdir -p $out/bin
            bash -n $scriptPath
            cp $scriptPath $out/bin/${name}
            chmod 755 $out/bin/${name}
          '';

      mkShellNoCC =
        { packages }:
        runCommand "nix-shell" { nativeBuildInputs = packages; } ''
          export > $out
        '';

      fetchurl =
        {
          url ? builtins.head urls,
          urls ? [ url ],
          name ? baseNameOf url,
          sha256,
        }:
        derive {
          # what no store name may hold, becomes "-"
          name = builtins.concatStringsSep "-" (
            builtins.filter builtins.isString (builtins.split "[^a-zA-Z0-9+._?=-]+" name)
          );
          builder = "${bash}/bin/bash";
          args = [
            "-c"
            ''
              echo "$name is not in the store, and a stand-in for nixpkgs downloads nothing" >&2
              echo "  expected: a file of that name with SHA-256 $outputHash" >&2
              echo "  mend: envbuild nix preload" >&2
              exit 1
            ''
          ];
          outputHash = sha256;
          outputHashAlgo = "sha256";
          outputHashMode = "flat";
        };

      # the host does not matter: what counts is the name that a file has there
      fetchPypi =
        {
          format ? "setuptools",
          sha256,
          ...
        }@arguments:
        let
          wheel =
            {
              pname,
              version,
              dist ? "py2.py3",
              python ? "py2.py3",
              abi ? "none",
              platform ? "any",
            }:
            "${pname}-${version}-${python}-${abi}-${platform}.whl";
          sdist =
            {
              pname,
              version,
              extension ? "tar.gz",
            }:
            "${pname}-${version}.${extension}";
          file =
            if format == "wheel" then
              wheel
            else if format == "setuptools" then
              sdist
            else
              throw "fetchPypi: unsupported format ${format}";
        in
        fetchurl {
          inherit sha256;
          name = file (
            builtins.removeAttrs arguments [
              "format"
              "sha256"
            ]
          );
        };

      # A program with its libraries and its loader. They are found beside it, but for the loader,
      # whose path must be absolute: a text of the same length stands for it in the program.
      install =
        name: attributes: buildCommand:
        runCommand name
          (
            {
              nowhere = "${facts.nowhere}${name}";
              place = ''
                import os, pathlib, sys

                nowhere, own = (os.environ[name].encode() for name in ("nowhere", "out"))
                assert len(nowhere) == len(own), own
                path = pathlib.Path(sys.argv[1])
                data = path.read_bytes()
                path.unlink()  # it may be what runs
                path.write_bytes(data.replace(nowhere, own))
                path.chmod(0o755)
              '';
            }
            // attributes
          )
          ''
            mkdir $out
            tar -xzf ${self}/${(builtins.parseDrvName name).name}.tar.gz -C $out
            ${buildCommand}
          '';
      compile = "python3 -BS -m compileall -q --invalidation-mode unchecked-hash";

      python3 =
        install "python3-${facts.python.version}"
          {
            meta.mainProgram = "python3";
            passthru = {
              inherit withPackages;
              inherit (facts.python) pythonVersion;
              pkgs = python3Packages;
            };
          }
          ''
            python=$out/bin/python${facts.python.pythonVersion}
            # by the loader, since it has no path yet
            $out/lib/ld-linux-x86-64.so.2 --library-path $out/lib $python -BSc "$place" $python
            $out/bin/${compile} $out/lib
          '';

      # as nixpkgs has them: by name, each bringing what it needs
      python3Packages =
        builtins.mapAttrs (pname: package: {
          inherit pname;
          inherit (package) version;
        }) facts.packages
        // {
          inherit fetchPypi;
        };

      withPackages =
        choose:
        let
          closure = builtins.genericClosure {
            startSet = map (package: { key = package.pname; }) (choose python3Packages);
            operator = { key }: map (key: { inherit key; }) facts.packages.${key}.requires;
          };
          archives = map (one: "${self}/packages/${one.key}.tar.gz") closure;
        in
        runCommand "${python3.name}-env"
          {
            meta.mainProgram = "python3";
            passthru = { inherit (facts.python) pythonVersion; };
          }
          ''
            library=$out/lib/python${facts.python.pythonVersion}/site-packages
            mkdir -p $out/bin $library
            ln -s ${python3}/bin/* $out/bin
            echo "home = ${python3}/bin" > $out/pyvenv.cfg
            for archive in ${toString archives}; do
              tar -xzf $archive -C $library
            done
            $out/bin/${compile} $library
          '';

      # runs in builds, as a check; skopeo only where there is a network
      nixfmt = install "nixfmt" { meta.mainProgram = "nixfmt"; } ''
        ${python3}/bin/python3 -BSc "$place" $out/bin/nixfmt
      '';

      skopeo =
        if facts.skopeo == null then
          throw "the stand-in for nixpkgs was made without skopeo: install it (Debian: apt-get install skopeo) and make it again"
        else
          writeShellApplication {
            name = "skopeo";
            text = ''exec ${quoted facts.skopeo} "$@"'';
          };
    in
    {
      legacyPackages.${system} = {
        inherit
          bash
          coreutils
          fetchPypi
          fetchurl
          linkFarm
          mkShellNoCC
          python3
          python3Packages
          runCommand
          skopeo
          stdenv
          system
          writeShellApplication
          ;
        # what `nix develop` asks for
        bashInteractive = bash;
      }
      # not every machine has it: the flake goes without
      // (if facts.nixfmt then { inherit nixfmt; } else { });
    };
}
