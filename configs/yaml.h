// YAML as a small tree in which every node knows where it was written, read within limits: size, depth,
// number of nodes after aliases are written out. A key that appears twice is an error, and so are tags and
// merge keys.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace weft::configs {

inline constexpr size_t kYamlSizeMax = size_t{256} << 10;  // bytes
inline constexpr size_t kYamlDepthMax = 16;
inline constexpr size_t kYamlNodesMax = 10000;

struct Location {
  std::string source;     // a file's name, or "--set a.b"
  int line = 0;           // from 1; 0 where there is no line
  int column = 0;         // from 1
  bool from_set = false;  // whether it came from the command line
};
std::string to_string(const Location& location);  // "job.yaml:3:7" or "--set a.b"

struct Entry;

struct Node {
  enum class Kind { Null, Scalar, Sequence, Map };
  Kind kind = Kind::Null;
  std::string text;     // of a scalar
  bool quoted = false;  // a quoted scalar is a text, whatever it looks like
  std::vector<Node> items;
  std::vector<Entry> entries;  // in the order written
  Location where;

  const Entry* find(std::string_view key) const;
};

struct Entry {
  std::string key;
  Location where;  // of the key
  Node value;
};

// One document. InvalidArgument with the place; ResourceExhausted beyond a limit.
Result<Node> parse_yaml(std::string_view text, const std::string& source);

// "a.b=v": puts the YAML value v at a.b, creating maps on the way; null takes the key away. InvalidArgument
// where a is not a map.
Status apply_set(Node& root, std::string_view assignment);

// " (did you mean 'x'?)" when one of the candidates is close, else "; there are: x, y".
std::string suggestion(std::string_view word, std::span<const std::string> candidates);

}  // namespace weft::configs
