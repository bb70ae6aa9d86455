// What an end of a link is made of in tests.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "peer/machine/link.h"

namespace weft::peer {

inline const Instant kStart = Instant{} + std::chrono::hours(1);
inline const proto::Secret kTicket = {7};
inline const PeerId kOther = {Digest{{1}}};

struct Outbox final : LinkOutbox {
  Status acknowledged(uint64_t received) override { return ledger.acknowledged(received); }
  Status resume(uint64_t received) override { return ledger.resume(received); }
  bool is_empty() const override { return ledger.kept_frames() == 0; }
  LinkLedger<uint64_t> ledger;
};

inline proto::AssignStage stage(uint32_t seat) {
  proto::AssignStage assignment;
  assignment.run = 1;
  assignment.plan_version = 2;
  assignment.seat = {seat};
  return assignment;
}

inline proto::LinkRoute route_to(uint32_t seat, bool dials, std::vector<std::string> addresses) {
  return {.seat = {seat},
          .peer = kOther,
          .dials = dials,
          .addresses = std::move(addresses),
          .relay_ticket = kTicket,
          .region = {}};
}

template <typename E>
std::vector<E> all_of(const LinkMachine::Effects& effects) {
  std::vector<E> found;
  for (const auto& effect : effects)
    if (const auto* e = std::get_if<E>(&effect)) found.push_back(*e);
  return found;
}
template <typename M>
std::optional<M> said(const LinkMachine::Effects& effects) {
  for (const auto& say : all_of<link_effects::Say>(effects))
    if (const auto* m = std::get_if<M>(&say.message)) return *m;
  return std::nullopt;
}

}  // namespace weft::peer
