// The `data` section of a job file.
#pragma once

#include <filesystem>
#include <optional>

#include "configs/reader.h"
#include "data/data_spec.h"

namespace weft::configs {

// How paths in a job file are understood.
struct PathRules {
  std::filesystem::path folder;  // what relative ones are relative to; those of --set are to the current one
  bool check_files = true;

  // `where`: of the path's node.
  std::filesystem::path resolve(const std::string& path, const Location& where) const;
};

// The path that `key` holds, resolved; its absence or that of the file is a problem. Empty then.
std::filesystem::path read_file_path(MapReader& reader, std::string_view key, std::string_view hint,
                                     const PathRules& rules);

// The same of a node that is there.
std::filesystem::path read_file(MapReader& reader, const Node& node, std::string_view key,
                                const PathRules& rules);

// `node` is the map at `path`: {type: npz, ...}. Nothing when it cannot be told.
std::optional<data::DataSpec> read_data_spec(const Node& node, const std::string& path,
                                             const PathRules& rules, Problems& problems);

// job_jsonl.cc: of `type: jsonl`.
data::JsonlSpec read_jsonl(MapReader& reader, const PathRules& rules);

// A class has one number, in what is trained on and in what it is tested on.
void share_classes(const data::DataSpec& train, data::DataSpec& test);

}  // namespace weft::configs
