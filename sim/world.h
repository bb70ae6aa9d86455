// The simulated world's clock and its queue of what is going to happen. Everything that happens is noted: the
// notes' hash tells whether two runs were the same, and the last of them are shown when something is wrong.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/rng.h"
#include "base/units.h"

namespace weft::sim {

// 0: the broker; then peers; then users.
using NodeId = uint32_t;

enum class What : uint8_t {
  BrokerStarts,   // a: incarnation
  BrokerCrashes,  // a: incarnation, b: whether the append under way was kept
  Append,         // a: records, b: nanoseconds
  AppendRefused,  // disk full
  Record,         // a: index in broker::Record, b: job, c: step or sequence
  ToBroker,       // a: from, b: index in proto::Message, c: step or the like
  ToPeer,         // a: to, b: index in proto::Message, c: step or the like
  Lost,           // a: node, b: other node
  Connected,      // a: node, b: other node
  ConnectFailed,  // a: node, b: other node
  PeerStarts,     // a: node, b: life
  PeerCrashes,    // a: node
  PeerLeaves,     // a: node
  PeerSays,       // a: node
  Planned,        // a: job, b: plan version, c: whether there is a plan
  Blob,           // a: node, b: first bytes of the digest
  Runner,         // a: node, b: job, c: plan version
  TaskDone,       // a: node, b: kind and segment, c: step and microbatch
  Data,           // a: node, b: program, c: step and microbatch
  Hashed,         // a: node, c: step
  Offered,        // a: node, b: upload, c: how many the broker lacks
  Uploaded,       // a: node, b: first bytes of the digest
  Given,          // a: node, b: another, to which it gave a blob
  Tensor,         // a: node, b: edge, c: step and microbatch
  LinksUp,        // a: node
  LinkDown,       // a: node, b: stage
  LinkFailed,     // a: node, b: stage
  Fault,          // a: kind (sim/faults.h), b, c: whom
  Phase,          // a: which
  User,           // a: node, b: what, c: job
};
std::string_view to_string(What what);

struct Note {
  Instant at{};
  What what{};
  uint64_t a = 0, b = 0, c = 0;
};

inline uint64_t mix(uint64_t x) {  // splitmix64's finaliser
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}
inline uint64_t mix(uint64_t a, uint64_t b) { return mix(mix(a) ^ b); }

class World {
 public:
  explicit World(uint64_t seed) : seed_(seed) {}

  uint64_t seed() const { return seed_; }
  Instant now() const { return now_; }
  // Among those at one instant, first come, first served.
  void at(Instant when, std::function<void()> action);
  void after(Duration delay, std::function<void()> action) { at(now_ + delay, std::move(action)); }
  // The next action; false: there is none, or something has failed.
  bool step();
  // Nothing of what was planned happens any more.
  void clear();

  void note(What what, uint64_t a = 0, uint64_t b = 0, uint64_t c = 0) {
    notes_[noted_++ % notes_.size()] = {now_, what, a, b, c};
    ++noted_of_[static_cast<size_t>(what)];
    hash_ = mix(hash_ ^ static_cast<uint64_t>(now_.time_since_epoch().count()),
                mix(static_cast<uint64_t>(what) ^ (a << 8), b ^ (c << 20)));
    if (trace_) print(notes_[(noted_ - 1) % notes_.size()]);
  }
  uint64_t trace_hash() const { return hash_; }
  uint64_t noted() const { return noted_; }
  uint64_t noted(What what) const { return noted_of_[static_cast<size_t>(what)]; }
  std::string last_notes() const;  // a line each
  void set_trace(bool trace) { trace_ = trace; }
  // A line of people's interest, shown with --trace only.
  bool traces() const { return trace_; }
  void say(const std::string& line) const;

  // The first violation ends the simulation.
  void fail(std::string what);
  const std::optional<std::string>& failure() const { return failure_; }

 private:
  struct Entry {
    Instant at;
    uint64_t order;
    uint32_t slot;
  };
  static bool later(const Entry& a, const Entry& b) { return a.at != b.at ? a.at > b.at : a.order > b.order; }
  static void print(const Note& note);

  uint64_t seed_;
  Instant now_{};
  uint64_t order_ = 0, hash_ = 0, noted_ = 0;
  std::array<uint64_t, static_cast<size_t>(What::User) + 1> noted_of_{};  // User: the last of them
  bool trace_ = false;
  std::vector<Entry> heap_;
  std::vector<std::function<void()>> actions_;
  std::vector<uint32_t> free_;
  std::array<Note, 200> notes_{};
  std::optional<std::string> failure_;
};

// Draws in whole numbers: what floating point gives differs between compilers.
class Draw {
 public:
  Draw(uint64_t seed, uint64_t stream) : rng_(seed, stream) {}

  uint64_t below(uint64_t bound) { return rng_.below(bound); }
  uint64_t between(uint64_t low, uint64_t high) { return low + rng_.below(high - low + 1); }
  bool one_in(uint64_t count) { return rng_.below(count) == 0; }
  Duration between(Duration low, Duration high) {
    return Duration(low.count() +
                    static_cast<Duration::rep>(rng_.below(static_cast<uint64_t>((high - low).count()) + 1)));
  }
  // Each doubling between them as likely as the others.
  Duration doubling(Duration low, Duration high);
  uint64_t next() { return rng_.next_u64(); }

 private:
  Rng rng_;
};

}  // namespace weft::sim
