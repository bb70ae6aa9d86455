#include "cli/suggestions.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/typing_distance.h"

namespace weft::cli {

std::vector<std::string> nearest(std::string_view word, const std::vector<std::string>& known) {
  static constexpr size_t kLongest = 64, kMost = 3;
  if (word.empty() || word.size() > kLongest) return {};
  std::vector<std::pair<size_t, std::string>> found;
  for (const std::string& name : known) {
    const size_t far = typing_distance(word, name);
    const bool begins = word.size() >= 2 && name.starts_with(word);
    if (begins || (far <= 1 + word.size() / 4 && far < name.size())) found.emplace_back(far, name);
  }
  std::sort(found.begin(), found.end());
  if (found.size() > kMost) found.resize(kMost);
  std::vector<std::string> names;
  names.reserve(found.size());
  for (auto& [far, name] : found) names.push_back(std::move(name));
  return names;
}

std::string advice_on_command(std::string_view word, const std::vector<std::string>& commands) {
  static constexpr const char* kTrain =
      "`weft local JOB` trains on this machine, `weft submit JOB` on those of a broker";
  static const std::map<std::string_view, const char*> kElsewhere = {
      {"train", kTrain},
      {"run", kTrain},
      {"fit", kTrain},
      {"start",
       "`weft join` offers this machine, `weft broker` runs the service, `weft submit` starts a job"},
      {"infer", "`weft predict` runs a model over a file, `weft generate` and `weft chat` make text"},
      {"inference", "`weft predict` runs a model over a file, `weft generate` and `weft chat` make text"},
      {"ls", "`weft jobs` lists jobs, `weft peers` machines"},
      {"list", "`weft jobs` lists jobs, `weft peers` machines"},
      {"ps", "`weft jobs` lists jobs, `weft peers` machines"},
      {"cancel", "`weft stop N` ends a job after a checkpoint"},
      {"kill", "`weft stop N` ends a job after a checkpoint"},
      {"delete", "`weft rm N` removes an ended job"},
      {"remove", "`weft rm N` removes an ended job"},
      {"download", "`weft fetch N -o FILE` writes a job's trained model"},
      {"get", "`weft fetch N -o FILE` writes a job's trained model"},
      {"worker", "`weft join` offers this machine"},
      {"peer", "`weft join` offers this machine, `weft peers` lists those of a broker"},
      {"server", "`weft broker` runs the service, `weft serve` answers with a model"},
      {"daemon", "`weft broker` runs the service, `weft join` offers this machine"},
      {"version", "`weft --version`"},
  };
  if (const auto found = kElsewhere.find(word); found != kElsewhere.end()) return found->second;
  const std::vector<std::string> near = nearest(word, commands);
  return near.empty() ? "" : fmt::format("did you mean `weft {}`?", fmt::join(near, "` or `weft "));
}

}  // namespace weft::cli
