// Patterns that say which initializers are trained or not, and what is said of one that matches none.
#include <algorithm>
#include <vector>

#include "dag/onnx/import.h"
#include "dag/onnx/roles.h"

namespace weft::onnx {
namespace {

constexpr size_t kNamesMax = 20'000;  // looked at for a near one
constexpr size_t kTextMax = 128;      // of a name or pattern
constexpr size_t kShownMax = 3;

size_t count_matches(std::string_view pattern, const dag::Weights& weights) {
  return static_cast<size_t>(std::count_if(weights.begin(), weights.end(), [&](const auto& weight) {
    return matches_glob(pattern, weight.first);
  }));
}

// How many characters of the pattern are to be changed, left out or added so that it matches.
size_t glob_distance(std::string_view pattern, std::string_view text) {
  std::vector<size_t> row(text.size() + 1);
  for (size_t t = 0; t <= text.size(); ++t) row[t] = t;
  for (const char p : pattern) {
    size_t diagonal = row[0];
    if (p != '*') ++row[0];
    for (size_t t = 1; t <= text.size(); ++t) {
      const size_t above = row[t];
      if (p == '*')
        row[t] = std::min(above, row[t - 1]);
      else
        row[t] = std::min({diagonal + (p != '?' && p != text[t - 1]), above + 1, row[t - 1] + 1});
      diagonal = above;
    }
  }
  return row[text.size()];
}

// The same pattern with a * before or after it, when that matches something: "layer1" for "layer1.0.weight".
std::string wider_pattern(const std::string& pattern, const dag::Weights& weights) {
  for (const std::string& wider : {pattern + "*", "*" + pattern, "*" + pattern + "*"})
    if (const size_t count = count_matches(wider, weights); count != 0)
      return "'" + wider + "' (matches " + std::to_string(count) + ")";
  return {};
}

std::string near_names(std::string_view pattern, const dag::Weights& weights) {
  std::vector<std::pair<size_t, std::string_view>> near;
  size_t seen = 0;
  for (const auto& [name, tensor] : weights) {
    if (name.size() > kTextMax) continue;
    if (++seen > kNamesMax) break;
    const size_t distance = glob_distance(pattern, name);
    if (distance <= 1 + pattern.size() / 3) near.emplace_back(distance, name);
  }
  std::sort(near.begin(), near.end());
  std::string text;
  for (size_t i = 0; i < std::min(near.size(), kShownMax); ++i)
    text += (i ? ", '" : "'") + std::string(near[i].second) + "'";
  return text;
}

std::string first_names(const dag::Weights& weights) {
  std::string text;
  size_t shown = 0;
  for (auto at = weights.begin(); at != weights.end() && shown < kShownMax; ++at, ++shown)
    text += (shown ? ", '" : "'") + at->first.substr(0, kTextMax) + "'";
  return text + (weights.size() > kShownMax ? ", ..." : "");
}

std::string advice(const std::string& pattern, const dag::Weights& weights) {
  if (weights.empty()) return "the model has none";
  if (const std::string wider = wider_pattern(pattern, weights); !wider.empty())
    return "did you mean " + wider + "?";
  if (const std::string near = near_names(pattern, weights); !near.empty()) return "near names are " + near;
  return "they are named like " + first_names(weights) + " (`weft inspect MODEL --all` lists them)";
}

Status check_patterns(const OnnxModel& model, std::span<const std::string> patterns, const char* what) {
  for (const std::string& pattern : patterns)
    if (count_matches(pattern, model.weights()) == 0) {
      const std::string shown = pattern.substr(0, kTextMax);
      return fail(ErrorCode::NotFound, "nothing is " + std::string(what) + " by '" + shown +
                                           "': no initializer of the model has such a name; " +
                                           advice(shown, model.weights()));
    }
  return {};
}

}  // namespace

Status check_freeze(const OnnxModel& model, std::span<const std::string> patterns) {
  return check_patterns(model, patterns, "frozen");
}

Status check_targets(const OnnxModel& model, std::span<const std::string> patterns) {
  return check_patterns(model, patterns, "adapted");
}

Status check_train(const OnnxModel& model, std::span<const std::string> patterns) {
  return check_patterns(model, patterns, "trained");
}

}  // namespace weft::onnx
