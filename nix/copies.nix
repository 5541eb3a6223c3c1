# Programs that bring an image to where it is run: `nix run .#ENV-image.copyToRegistry -- REGISTRY/NAME`.
#
# The digest stays what it is: nothing is compressed again on the way to a registry.
{ pkgs }:
{
  image,
  imageName,
  imageTag,
  # the name of the image in its layout
  environment,
}:
let
  copy =
    name: text:
    pkgs.writeShellApplication {
      inherit name;
      runtimeInputs = [ pkgs.skopeo ];
      text = ''
        source="oci:${image}:${environment}"
        ${text}
      '';
    };
in
{
  # to any transport that skopeo knows: docker://…, oci:…, dir:…
  copyTo = copy "copy-to" ''
    if [ $# -eq 0 ]; then
      echo "usage: copy-to TRANSPORT:DESTINATION [OPTION]...: as skopeo copy has them" >&2
      exit 2
    fi
    exec skopeo --insecure-policy copy "$source" "$@"
  '';

  copyToRegistry = copy "copy-to-registry" ''
    if [ $# -eq 0 ]; then
      echo "usage: copy-to-registry REGISTRY/NAME[:TAG] [OPTION]...: options of skopeo copy" >&2
      exit 2
    fi
    destination=$1
    shift
    case "''${destination##*/}" in
      *:*) ;;
      *) destination="$destination:${imageTag}" ;;
    esac
    skopeo --insecure-policy copy --preserve-digests "$@" "$source" "docker://$destination"
    echo "$destination"
  '';

  copyToDockerDaemon = copy "copy-to-docker-daemon" ''
    skopeo --insecure-policy copy "$@" "$source" "docker-daemon:${imageName}:${imageTag}"
    echo "${imageName}:${imageTag}"
  '';

  copyToPodman = copy "copy-to-podman" ''
    skopeo --insecure-policy copy "$@" "$source" "containers-storage:${imageName}:${imageTag}"
    echo "${imageName}:${imageTag}"
  '';
}
