# shellcheck shell=bash
# For scripts that source it: packages of Debian that are not of this machine's architecture or release. They are
# unpacked where they are needed and installed nowhere.

# apt for one architecture, and for one release or that of this machine, with lists of its own in a folder. An archive
# removes what it replaces, so the lists are updated after a day. `|| return`: bash ignores `set -e` in what has `||` behind it.
private_apt() { # FOLDER ARCHITECTURE RELEASE TOOL ARGUMENT...
	local folder=$1 arch=$2 release=$3 tool=$4 options mirror
	shift 4
	folder=$(realpath -m "$folder")
	options=(-qq -o "APT::Architectures::=$arch" -o "Dir::State::lists=$folder/lists" -o "Dir::Cache=$folder/cache"
		-o "APT::Sandbox::User=$(id -un)" -o Acquire::Languages=none)
	if [[ $release != here ]]; then
		options+=(-o "Dir::Etc::sourcelist=$folder/sources.list" -o Dir::Etc::sourceparts=/dev/null)
	fi
	if [[ -z $(find "$folder/updated" -mmin -1440 2>/dev/null) ]]; then
		mkdir -p "$folder/lists/partial" "$folder/cache/archives/partial" || return
		if [[ $release != here ]]; then
			mirror=$(debian_mirror) || return
			echo "deb $mirror $release main" >"$folder/sources.list"
		fi
		# without the option, it succeeds if there is no network
		apt-get "${options[@]}" -o APT::Update::Error-Mode=any update || return
		touch "$folder/updated"
	fi
	"$tool" "${options[@]}" "$@"
}

# The mirror that this machine takes its own release from.
debian_mirror() {
	local codename mirror
	codename=$(. /etc/os-release && echo "$VERSION_CODENAME")
	mirror=$(apt-get indextargets --format '$(REPO_URI)' "Origin: Debian" "Codename: $codename" "Created-By: Packages" | head -n1)
	[[ -n $mirror ]] || {
		echo "apt has no package list for $codename; run \`apt-get update\`" >&2
		return 1
	}
	echo "$mirror"
}
