#include "sim/world.h"

#include <algorithm>
#include <cstdio>
#include <utility>

namespace weft::sim {

std::string_view to_string(What what) {
  switch (what) {
    case What::BrokerStarts:
      return "broker_starts";
    case What::BrokerCrashes:
      return "broker_crashes";
    case What::Append:
      return "append";
    case What::AppendRefused:
      return "append_refused";
    case What::Record:
      return "record";
    case What::ToBroker:
      return "to_broker";
    case What::ToPeer:
      return "to_peer";
    case What::Lost:
      return "lost";
    case What::Connected:
      return "connected";
    case What::ConnectFailed:
      return "connect_failed";
    case What::PeerStarts:
      return "peer_starts";
    case What::PeerCrashes:
      return "peer_crashes";
    case What::PeerLeaves:
      return "peer_leaves";
    case What::PeerSays:
      return "peer_says";
    case What::Planned:
      return "planned";
    case What::Blob:
      return "blob";
    case What::Runner:
      return "runner";
    case What::TaskDone:
      return "task_done";
    case What::Data:
      return "data";
    case What::Hashed:
      return "hashed";
    case What::Offered:
      return "offered";
    case What::Uploaded:
      return "uploaded";
    case What::Given:
      return "given";
    case What::Tensor:
      return "tensor";
    case What::LinksUp:
      return "links_up";
    case What::LinkDown:
      return "link_down";
    case What::LinkFailed:
      return "link_failed";
    case What::Fault:
      return "fault";
    case What::Phase:
      return "phase";
    case What::User:
      return "user";
  }
  return "?";
}

void World::at(Instant when, std::function<void()> action) {
  uint32_t slot = 0;
  if (free_.empty()) {
    slot = static_cast<uint32_t>(actions_.size());
    actions_.push_back(std::move(action));
  } else {
    slot = free_.back();
    free_.pop_back();
    actions_[slot] = std::move(action);
  }
  heap_.push_back({std::max(when, now_), order_++, slot});
  std::push_heap(heap_.begin(), heap_.end(), later);
}

bool World::step() {
  if (heap_.empty() || failure_) return false;
  std::pop_heap(heap_.begin(), heap_.end(), later);
  const Entry entry = heap_.back();
  heap_.pop_back();
  now_ = entry.at;
  const std::function<void()> action = std::move(actions_[entry.slot]);
  actions_[entry.slot] = nullptr;
  free_.push_back(entry.slot);
  action();
  return !failure_;
}

void World::clear() {
  // What goes may plan something itself.
  while (!heap_.empty()) {
    heap_.clear();
    free_.clear();
    const auto actions = std::exchange(actions_, {});
  }
}

namespace {

std::string line_of(const Note& note) {
  char text[256];
  const auto ns = note.at.time_since_epoch().count();
  std::snprintf(text, sizeof(text), "%5lld.%09lld %-15.*s %llu %llu %llu",
                static_cast<long long>(ns / 1000000000), static_cast<long long>(ns % 1000000000),
                static_cast<int>(to_string(note.what).size()), to_string(note.what).data(),
                static_cast<unsigned long long>(note.a), static_cast<unsigned long long>(note.b),
                static_cast<unsigned long long>(note.c));
  return text;
}

}  // namespace

void World::print(const Note& note) { std::printf("%s\n", line_of(note).c_str()); }

void World::say(const std::string& line) const {
  if (trace_) std::printf("                # %s\n", line.c_str());
}

std::string World::last_notes() const {
  std::string lines;
  const uint64_t count = std::min<uint64_t>(noted_, notes_.size());
  for (uint64_t i = noted_ - count; i < noted_; ++i) lines += line_of(notes_[i % notes_.size()]) + "\n";
  return lines;
}

void World::fail(std::string what) {
  if (!failure_) failure_ = std::move(what);
}

Duration Draw::doubling(Duration low, Duration high) {
  std::vector<Duration> steps;
  for (Duration d = low; d < high; d *= 2) steps.push_back(d);
  if (steps.empty()) return low;
  const Duration from = steps[rng_.below(steps.size())];
  return between(from, std::min(high, 2 * from));
}

}  // namespace weft::sim
