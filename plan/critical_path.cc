#include "plan/critical_path.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <tuple>

#include "base/check.h"

namespace weft::plan {
namespace {

using Kind = CriticalPart::Kind;

constexpr size_t kNamed = 5;  // shares in words
constexpr double kWorthNaming = 0.01;

std::string name_of(const CriticalShare& share) {
  const std::string stage = "stage " + std::to_string(share.stage + 1);
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

std::string percent(double share) {
  char text[16];
  std::snprintf(text, sizeof text, " %.0f%%", 100 * share);
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
  double all = 0, others = 1;
  for (const CriticalShare& share : shares) all += seconds(share.waited);
  if (all <= 0) return "nothing takes time";
  std::string text;
  for (size_t i = 0; i < std::min(shares.size(), kNamed); ++i) {
    const double part = seconds(shares[i].waited) / all;
    if (i > 0 && part < kWorthNaming) break;
    text += (i > 0 ? ", " : "") + name_of(shares[i]) + percent(part);
    others -= part;
  }
  return others >= kWorthNaming / 2 ? text + ", others" + percent(others) : text;
}

}  // namespace weft::plan
