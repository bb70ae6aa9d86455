// Reads a YAML map key by key into typed values. A problem is noted with its place and reading goes on with
// the default, so that one run tells everything that is wrong with a file.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "configs/yaml.h"

namespace weft::configs {

// What a reader asked a file for: the page that explains the keys is made of it, and its test.
struct AskedKeys {
  // By path ("optimizer.betas"; "[]" after what is a list): which values the reader takes, as "a number above
  // 0"; empty where that is more than one value.
  std::map<std::string, std::string, std::less<>> takes;
};

class Problems {
 public:
  // `asked`, where given, hears of every key that is asked for.
  explicit Problems(AskedKeys* asked = nullptr) : asked_(asked) {}
  void add(ErrorCode code, const Location& where, const std::string& what);
  bool empty() const { return count_ == 0; }
  // All problems, a line each, with the code of the first. REQUIRES: !empty().
  Error error() const;
  AskedKeys* asked() const { return asked_; }

 private:
  AskedKeys* asked_;
  static constexpr size_t kShownMax = 20;
  size_t count_ = 0;
  ErrorCode code_ = ErrorCode::InvalidArgument;
  std::string text_;
};

struct Range {
  double min;
  double max;
  bool above_min = false;  // min itself is not allowed
  bool below_max = false;  // nor max
};

template <typename T>
struct Choice {
  std::string_view name;
  T value;
};

class MapReader {
 public:
  // `path` is the dotted path of the map, empty for the root. Nothing but a map is a problem, noted once; all
  // keys are absent then, and none is missed.
  MapReader(const Node& node, std::string path, Problems& problems);

  // The key's node, which counts as known from here on; nullptr when absent.
  const Node* take(std::string_view key);
  // The same; its absence is a problem: "<path> needs `key`: <hint>".
  const Node* require(std::string_view key, std::string_view hint);

  double number(std::string_view key, double otherwise, Range range);
  uint64_t count(std::string_view key, uint64_t otherwise, uint64_t min, uint64_t max);
  bool flag(std::string_view key, bool otherwise);
  std::string text(std::string_view key, std::string_view otherwise);
  std::string required_text(std::string_view key, std::string_view hint);

  template <typename T, size_t N>
  std::optional<T> choice(const Node* node, std::string_view key, const Choice<T> (&choices)[N]) {
    std::vector<std::string> names;
    for (const auto& option : choices) names.emplace_back(option.name);
    const std::optional<size_t> index = choice_index(node, key, names);
    if (!index) return std::nullopt;
    return choices[*index].value;
  }

  // The key `format`, where the file has it, says 1: anything else is VersionMismatch.
  void check_format();
  // Every key that nobody took is a problem.
  void finish();

  void problem(const Location& where, const std::string& what, ErrorCode code = ErrorCode::InvalidArgument) {
    problems_.add(code, where, what);
  }
  const Location& where() const { return node_.where; }
  std::string path_of(std::string_view key) const {
    return path_.empty() ? std::string(key) : path_ + "." + std::string(key);
  }
  bool is_map() const { return node_.kind == Node::Kind::Map; }

  std::optional<double> parse_number(const Node& node, std::string_view key, Range range);
  std::optional<uint64_t> parse_count(const Node& node, std::string_view key, uint64_t min, uint64_t max);
  std::optional<std::string> parse_text(const Node& node, std::string_view key);
  // A list of texts, at least `least`. `example`: of such a list, for who wrote another thing.
  std::vector<std::string> parse_patterns(const Node& node, std::string_view key, size_t least,
                                          std::string_view example);

 private:
  std::optional<size_t> choice_index(const Node* node, std::string_view key,
                                     const std::vector<std::string>& names);
  // Notes which values the key takes; not of a `node` that is an item of the key's list.
  void note(const Node* node, std::string_view key, const std::string& takes);
  const Node& node_;
  std::string path_;
  Problems& problems_;
  std::vector<std::string> known_;
};

}  // namespace weft::configs
