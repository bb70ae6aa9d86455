#include "plan/critical_path.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <string_view>
#include <tuple>

#include "base/check.h"

namespace weft::plan {
namespace {

using Kind = CriticalPart::Kind;

constexpr size_t kNamed = 5;  // shares in words
constexpr double kWorthNaming = 0.01;
constexpr double kMostly = 0.75;

std::string name_of(const CriticalShare& share) {
  std::string stage = "stage " + std::to_string(share.stage + 1);
  switch (share.kind) {
    case Kind::Compute:
      return stage + " computes";
    case Kind::Update:
      return stage + " updates";
    case Kind::Norm:
      return "the norm's round trip";
    case Kind::Uplink:
      return "the uplink of " + stage;
    case Kind::Downlink:
      return "the downlink of " + stage;
    case Kind::Data:
      return "the data of " + stage;
    case Kind::Link:
      return "the link from " + stage + " to stage " + std::to_string(share.to_stage + 1);
  }
  return stage;
}

std::string_view name_of(Kind kind) {
  switch (kind) {
    case Kind::Compute:
      return "computing";
    case Kind::Update:
      return "updates";
    case Kind::Norm:
      return "the norm";
    case Kind::Uplink:
      return "uplinks";
    case Kind::Downlink:
      return "downlinks";
    case Kind::Data:
      return "data";
    case Kind::Link:
      return "links";
  }
  return "";
}

std::string percent(double share) {
  char text[16];
  std::snprintf(text, sizeof text, " %.0f%%", 100 * share);
  return text;
}

// By kind, the longest first, and of each what is waited for most: where no few things are most of it.
std::string describe_kinds(std::span<const CriticalShare> shares, double all) {
  std::map<Kind, std::pair<double, const CriticalShare*>> kinds;
  for (const CriticalShare& share : shares) {
    auto& [waited, most] = kinds[share.kind];
    waited += seconds(share.waited);
    if (!most || share.waited > most->waited) most = &share;
  }
  std::vector<std::pair<double, const CriticalShare*>> sorted;
  sorted.reserve(kinds.size());
  for (const auto& [kind, sum] : kinds) sorted.push_back(sum);
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  std::string text;
  for (const auto& [waited, most] : sorted) {
    if (waited / all < kWorthNaming) break;
    text += (text.empty() ? "" : ", ") + std::string(name_of(most->kind)) + percent(waited / all) + " (" +
            name_of(*most) + percent(seconds(most->waited) / all) + ")";
  }
  return text;
}

}  // namespace

PathRecorder::Mark PathRecorder::add(const CriticalPart& part, Mark after) {
  WEFT_CHECK(part.begin == end(after));
  parts_.push_back({part, after});
  return static_cast<Mark>(parts_.size() - 1);
}

std::vector<CriticalPart> PathRecorder::path_to(Mark last) const {
  std::vector<CriticalPart> path;
  for (Mark at = last; at != kBegin; at = parts_[at].after)
    if (parts_[at].part.end > parts_[at].part.begin) path.push_back(parts_[at].part);
  std::reverse(path.begin(), path.end());
  return path;
}

// The borders between shares are rounded, not the shares: nothing is lost in the sum.
std::vector<CriticalShare> shares_of(std::span<const CriticalPart> path, Duration step) {
  std::map<std::tuple<Kind, uint32_t, uint32_t>, int64_t> waited;
  int64_t all = 0;
  for (const CriticalPart& part : path) {
    const int64_t length = (part.end - part.begin).count();
    // All stages wait for the norm together.
    const bool is_norm = part.kind == Kind::Norm;
    waited[{part.kind, is_norm ? 0 : part.stage, is_norm ? 0 : part.to_stage}] += length;
    all += length;
  }
  std::vector<CriticalShare> shares;
  const double scale = all > 0 ? static_cast<double>(step.count()) / static_cast<double>(all) : 0;
  int64_t passed = 0;
  Duration border{};
  for (const auto& [what, length] : waited) {
    passed += length;
    const Duration next =
        passed == all ? step : Duration(static_cast<int64_t>(static_cast<double>(passed) * scale));
    shares.push_back({std::get<0>(what), std::get<1>(what), std::get<2>(what), next - border});
    border = next;
  }
  std::stable_sort(shares.begin(), shares.end(),
                   [](const CriticalShare& a, const CriticalShare& b) { return a.waited > b.waited; });
  return shares;
}

std::string describe(std::span<const CriticalShare> shares) {
  double all = 0;
  for (const CriticalShare& share : shares) all += seconds(share.waited);
  if (all <= 0) return "nothing takes time";
  const auto part = [&](const CriticalShare& share) { return seconds(share.waited) / all; };
  double named = 0;
  for (size_t i = 0; i < std::min(shares.size(), kNamed); ++i) named += part(shares[i]);
  if (named < kMostly) return describe_kinds(shares, all);
  std::string text;
  double others = 1;
  for (size_t i = 0; i < std::min(shares.size(), kNamed); ++i) {
    if (i > 0 && part(shares[i]) < kWorthNaming) break;
    text += (i > 0 ? ", " : "") + name_of(shares[i]) + percent(part(shares[i]));
    others -= part(shares[i]);
  }
  return others >= kWorthNaming / 2 ? text + ", others" + percent(others) : text;
}

}  // namespace weft::plan
