// The layers, kept by reading the include lines: each folder may include only those below it
// (docs/ARCHITECTURE.md), pure folders touch neither clock nor thread nor disk nor library, and no source
// file is left out of the build.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "tests/tidy/tree.h"

namespace weft::tidy {
namespace {
namespace fs = std::filesystem;

struct Layer {
  std::set<std::string> may_include;  // besides itself
  bool pure = false;
};

const std::map<std::string, Layer>& layers() {
  static const std::map<std::string, Layer> kLayers = {
      {"base", {{}, true}},
      {"dag", {{"base"}, true}},
      {"compress", {{"base"}, true}},
      {"dag/ops", {{"dag", "base"}, true}},
      {"dag/passes", {{"dag", "base"}, true}},
      {"peer", {{"peer/backend", "dag", "base"}, true}},
      {"peer/backend", {{"peer", "dag", "base"}, true}},
      {"dag/incremental", {{"dag", "base"}, true}},
      {"serve", {{"dag/incremental", "peer", "peer/backend", "dag", "base"}, true}},
      {"dag/onnx", {{"dag", "dag/passes", "base"}}},
      {"data", {{"text", "dag", "base"}}},
      {"configs", {{"data", "text", "plan", "replicas", "peer", "dag", "compress", "base"}}},
      {"storage", {{"replicas", "compress", "dag", "base"}}},
      {"weights", {{"dag/onnx", "data", "storage", "dag", "base"}}},
      {"text", {{"base"}}},
      {"peer/backend/host", {{"peer/backend", "peer", "dag", "base"}}},
      {"peer/backend/reference", {{"peer/backend/host", "peer/backend", "peer", "dag", "base"}}},
      {"peer/backend/cpu",
       {{"peer/backend/reference", "peer/backend/host", "peer/backend", "peer", "dag", "base"}}},
      {"peer/backend/cuda", {{"peer/backend/reference", "peer/backend", "peer", "dag", "base"}}},
      {"peer/modules", {{"peer/backend", "peer", "dag", "base"}}},
      {"plan", {{"replicas", "dag", "compress", "base"}, true}},
      {"replicas", {{"compress", "base"}, true}},
      {"proto", {{"plan", "replicas", "dag/incremental", "dag", "compress", "base"}, true}},
      {"broker", {{"proto", "plan", "dag", "base"}, true}},
      // The broker's rooms know each other downwards; all of them know the values at its door.
      {"broker/run", {{"broker", "proto", "plan", "replicas", "dag", "base"}, true}},
      {"broker/pool", {{"broker", "proto", "plan", "dag", "base"}, true}},
      {"broker/jobs", {{"broker", "broker/run", "broker/pool", "proto", "plan", "dag", "base"}, true}},
      {"broker/place",
       {{"broker", "broker/jobs", "broker/run", "broker/pool", "proto", "plan", "dag", "base"}, true}},
      {"broker/links",
       {{"broker", "broker/place", "broker/jobs", "broker/run", "broker/pool", "proto", "plan", "dag",
         "base"},
        true}},
      {"peer/machine", {{"proto", "plan", "replicas", "dag/incremental", "dag", "compress", "base"}, true}},
      {"peer/manners", {{"base"}, true}},
      {"peer/desktop", {{"peer/manners", "base"}}},
      {"proto/codec", {{"proto", "plan", "replicas", "dag", "compress", "base"}}},
      {"security", {{"base"}}},
      {"net/model", {{"base"}, true}},
      {"net", {{"net/model", "security", "base"}}},
      {"web", {{"net", "base"}}},
      {"broker/store", {{"broker", "proto/codec", "proto", "dag", "base"}}},
      {"peer/backend/null", {{"plan", "peer/backend", "peer", "dag", "base"}}},
      {"broker/service",
       {{"broker",
         "broker/store",
         "proto",
         "proto/codec",
         "serve/service",
         "serve",
         "text",
         "net",
         "web",
         "security",
         "storage",
         "configs",
         "weights",
         "data",
         "train",
         "dag/onnx",
         "peer/backend/reference",
         "peer/backend",
         "plan",
         "dag",
         "base"}}},
      {"peer/service",
       {{"peer",
         "peer/machine",
         "peer/backend",
         "peer/backend/cpu",
         "peer/backend/host",
         "peer/backend/null",
         "peer/backend/reference",
         "serve",
         "dag/incremental",
         "replicas",
         "compress",
         "proto",
         "proto/codec",
         "net",
         "web",
         "security",
         "storage",
         "weights",
         "plan",
         "dag",
         "base"}}},
      {"train",
       {{"configs", "data", "storage", "text", "weights", "dag/onnx", "dag/passes", "peer/backend/reference",
         "peer", "peer/backend", "plan", "replicas", "compress", "serve", "dag/incremental", "dag", "base"}}},
      {"serve/service",
       {{"serve", "dag/incremental", "train", "dag/onnx", "text", "web", "net", "storage",
         "peer/backend/reference", "peer", "peer/backend", "dag", "base"}}},
      {"ui", {{"proto", "web", "net", "plan", "base"}}},
      {"sim", {{"net/model", "broker", "peer/machine", "proto", "plan", "replicas", "dag", "base"}}},
      {"cli",
       {{"broker/service",
         "broker/store",
         "broker",
         "peer/service",
         "peer/desktop",
         "peer/manners",
         "proto",
         "proto/codec",
         "net",
         "web",
         "security",
         "plan",
         "train",
         "configs",
         "data",
         "storage",
         "weights",
         "dag/onnx",
         "dag/passes",
         "peer/backend/cpu",
         "peer/backend/cuda",
         "peer/backend/host",
         "peer/backend/null",
         "peer/backend/reference",
         "peer/backend",
         "peer/modules",
         "serve/service",
         "serve",
         "ui",
         "dag/incremental",
         "text",
         "web",
         "peer",
         "dag",
         "base"}}},
  };
  return kLayers;
}

// Of a layer that has rooms: outside, and at its door, they are the layer.
bool is_room_of(const std::string& folder, const std::string& layer) {
  static const std::set<std::string> kRooms = {"broker/run", "broker/pool", "broker/jobs", "broker/place",
                                               "broker/links"};
  return kRooms.contains(folder) && folder.starts_with(layer + "/");
}
bool may_use(const std::string& own, const std::string& other) {
  const std::set<std::string>& below = layers().at(own).may_include;
  if (own == other || below.contains(other) || (own == "dag" && other == "dag/ops")) return true;
  if (is_room_of(other, "broker"))
    return !is_room_of(own, "broker") && (own == "broker" || below.contains("broker"));
  return false;
}

// The folders through which a library comes in: one each, where nothing speaks against it.
const std::map<std::string, std::set<std::string>>& doors() {
  static const std::map<std::string, std::set<std::string>> kDoors = {
      {"onnx/", {"dag/onnx"}},
      {"google/protobuf", {"dag/onnx", "proto/codec"}},  // ONNX's schema; weft's own messages
      {"yaml-cpp/", {"configs"}},
      {"dnnl", {"peer/backend/cpu"}},
      {"oneapi/dnnl", {"peer/backend/cpu"}},
      {"omp.h", {"peer/backend/cpu"}},
      {"zlib.h", {"data"}},
      {"turbojpeg.h", {"data"}},
      {"spng.h", {"data"}},
      {"webp/", {"data"}},
      {"pcre2.h", {"text"}},
      {"utf8proc.h", {"text"}},
      {"openssl/", {"storage", "security", "net", "web"}},  // digests; keys; TLS
      {"asio", {"net"}},
      {"zmq", {"broker/service"}},
      {"sqlite3.h", {"broker/store"}},
      {"CLI/", {"cli"}},
      {"cuda", {"peer/backend/cuda"}},
      {"cublas", {"peer/backend/cuda"}},
      {"cudnn", {"peer/backend/cuda"}},
      {"nvrtc.h", {"peer/backend/cuda"}},
      {"boost/", {"peer/backend/cuda", "web"}},  // fibers of the shim; a parser of HTTP
      {"nlohmann/", {"cli", "data", "storage", "weights", "web", "text", "ui"}},
      {"qrencode.h", {"ui"}},
  };
  return kDoors;
}

// The listed folder that a path lies in: the longest prefix.
std::string layer_of(const fs::path& path) {
  for (fs::path folder = path.parent_path(); !folder.empty(); folder = folder.parent_path())
    if (layers().contains(folder.generic_string())) return folder.generic_string();
  return {};
}

std::vector<std::string> includes(const std::string& text) {
  static const std::regex kInclude(R"re(^\s*#include\s+([<"][^>"]+[>"]))re", std::regex::multiline);
  std::vector<std::string> found;
  for (auto at = std::sregex_iterator(text.begin(), text.end(), kInclude); at != std::sregex_iterator(); ++at)
    found.push_back((*at)[1]);
  return found;
}

TEST(Layers, EveryFolderIsListed) {
  for (const fs::path& file : sources())
    EXPECT_NE(layer_of(file), "") << file << " lies in a folder without a layer";
}

TEST(Layers, ArrowsPointDown) {
  for (const fs::path& file : sources()) {
    const std::string own = layer_of(file);
    if (own.empty()) continue;
    for (const std::string& include : includes(read(file))) {
      if (include[0] != '"') continue;
      const std::string target = include.substr(1, include.size() - 2);
      EXPECT_TRUE(fs::exists(root() / target))
          << file << " includes " << include << ": includes are written from the root";
      const std::string other = layer_of(target);
      EXPECT_TRUE(may_use(own, other))
          << file << " includes " << include << ": " << own << " may not use " << other;
    }
  }
}

TEST(Layers, PureFoldersTouchNothingOutside) {
  static const std::set<std::string> kForbidden = {
      "<thread>",   "<mutex>",    "<fstream>", "<filesystem>",
      "<iostream>", "<random>",   "<atomic>",  "<condition_variable>",
      "<future>",   "<unistd.h>", "<ctime>",   "\"base/mutex.h\""};
  static const std::regex kCalls(R"(system_clock|steady_clock|random_device|std::rand\b|getenv|std::time\b)");
  for (const fs::path& file : sources()) {
    const std::string own = layer_of(file);
    if (own.empty() || !layers().at(own).pure) continue;
    if (file == "base/mutex.h") continue;  // for those that are not
    const std::string text = read(file);
    for (const std::string& include : includes(text))
      EXPECT_FALSE(kForbidden.contains(include)) << file << " includes " << include;
    std::smatch match;
    EXPECT_FALSE(std::regex_search(text, match, kCalls)) << file << " uses " << match.str();
  }
}

TEST(Layers, EachLibraryHasOneDoor) {
  for (const fs::path& file : sources())
    for (const std::string& include : includes(read(file)))
      for (const auto& [library, folders] : doors())
        if (include[0] == '<' && include.compare(1, library.size(), library) == 0) {
          EXPECT_TRUE(folders.contains(layer_of(file))) << file << " includes " << include;
        }
}

TEST(Tree, EverySourceIsBuilt) {
  for (const fs::path& file : sources()) {
    if (file.extension() != ".cc") continue;
    bool listed = file.generic_string().find("peer/backend/cuda/shim/") == 0;  // of tests/cuda alone
    for (fs::path folder = file.parent_path(); !folder.empty() && !listed; folder = folder.parent_path())
      for (const auto& entry : fs::directory_iterator(root() / folder)) {
        const fs::path& list = entry.path();
        if (list.filename() != "CMakeLists.txt" && list.extension() != ".cmake") continue;
        const std::string text = read(fs::relative(list, root()));
        listed = listed || text.find(fs::relative(file, folder).generic_string()) != std::string::npos ||
                 text.find(file.stem().generic_string()) != std::string::npos;
      }
    EXPECT_TRUE(listed) << file << " is in no CMakeLists.txt or .cmake file";
  }
}

TEST(Tree, HasNoLeftovers) {
  static const std::regex kLeftover(std::string("FIX") + "ME|TO" + "DO|XX" + "X");
  for (const fs::path& file : sources()) {
    const std::string text = read(file);
    std::smatch match;
    EXPECT_FALSE(std::regex_search(text, match, kLeftover)) << file << " holds a " << match.str();
  }
}

}  // namespace
}  // namespace weft::tidy
