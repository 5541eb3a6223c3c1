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
  # skopeo takes a word too many for a question, prints its help and is content: so words are
  # counted here. What is asked of a destination tells one from an option that came first.
  copy =
    name: arguments: form: text:
    pkgs.writeShellApplication {
      inherit name;
      runtimeInputs = [ pkgs.skopeo ];
      text = ''
        source="oci:${image}:${environment}"
        usage() {
          echo "usage: ${name} ${arguments}: options as skopeo copy has them, --NAME=VALUE" >&2
          exit 2
        }
        ${
          if form == null then
            ""
          else
            ''
              destination=''${1-}
              case "$destination" in
                -*) usage ;;
                ${form}) shift ;;
                *) usage ;;
              esac
            ''
        }
        for word in "$@"; do
          case "$word" in
            -*) ;;
            *) usage ;;
          esac
        done
        ${text}
      '';
    };
in
{
  # to any transport that skopeo knows: docker://…, oci:…, dir:…
  copyTo = copy "copy-to" "TRANSPORT:DESTINATION [OPTION]..." "*:*" ''
    skopeo --insecure-policy copy "$@" "$source" "$destination"
  '';

  copyToRegistry = copy "copy-to-registry" "REGISTRY/NAME[:TAG] [OPTION]..." "*/*" ''
    destination=''${destination#docker://}
    case "''${destination##*/}" in
      *:* | *@*) ;;
      *) destination="$destination:${imageTag}" ;;
    esac
    skopeo --insecure-policy copy --preserve-digests "$@" "$source" "docker://$destination"
    echo "$destination"
  '';

  copyToDockerDaemon = copy "copy-to-docker-daemon" "[OPTION]..." null ''
    skopeo --insecure-policy copy "$@" "$source" "docker-daemon:${imageName}:${imageTag}"
    echo "${imageName}:${imageTag}"
  '';

  copyToPodman = copy "copy-to-podman" "[OPTION]..." null ''
    skopeo --insecure-policy copy "$@" "$source" "containers-storage:${imageName}:${imageTag}"
    echo "${imageName}:${imageTag}"
  '';
}
