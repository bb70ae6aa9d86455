// What `weft service install` writes for a peer that systemd runs for a user: its unit and its settings.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/result.h"

namespace weft::cli {

inline constexpr const char* kPeerUnit = "weft-peer.service";

struct PeerSettings {
  std::string broker;                // HOST:PORT
  std::string token_file;            // its name, beside the settings
  std::vector<std::string> devices;  // as --device takes them; not empty
};
// A file for `weft join --config`, in which every line that one may want to change is explained.
std::string settings_text(const PeerSettings& settings);

// A unit that runs `program` join --config `settings`. InvalidArgument where systemd could not read a path.
Result<std::string> unit_text(const std::filesystem::path& program, const std::filesystem::path& settings);

}  // namespace weft::cli
