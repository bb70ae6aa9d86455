// Whether what a replica has sent for an agreement is out of all proportion: what a liar, or a machine that
// computes wrong, would pull the others' weights away with. Differences that are finite and no larger than
// the others' pass: who lies within that is not found here. Pure.
//
// Compared is the norm of what one seat adds up of each replica, for one step that the replica made. Of four
// replicas and more with the middle of all of theirs; of fewer with the middle of what the replica itself had
// sent in the last ten agreements, once there were ten. Means are looked at likewise, by owner: how large they
// are beside what the replica that gets them has learnt of the same tensors.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

namespace weft::replicas {

inline constexpr size_t kEnoughToCompare = 4;  // replicas
inline constexpr size_t kRoundsCompared = 10;

struct Outlier {
  uint32_t replica = 0;
  double ratio = 0;  // of its norm to the middle; 0: it is not finite
  bool operator==(const Outlier&) const = default;
};

class NormGuard {
 public:
  // `norms`: by replica; nothing: it has no part in the agreement. `own`: whose seat this is, and which is
  // not looked at itself. The worst of those that are beyond `bound`; nothing: all pass, and are remembered.
  std::optional<Outlier> look_at(const std::vector<std::optional<double>>& norms, uint32_t own, double bound);

 private:
  std::map<uint32_t, std::deque<double>> before_;  // by replica
};

}  // namespace weft::replicas
