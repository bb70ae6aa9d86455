// How a broker stands, for whoever watches it.
#include <map>
#include <string>

#include "broker/broker.h"

namespace weft::broker {

namespace {

// All that there are, so that a state which nobody is in counts nought.
constexpr const char* kPeerStates[] = {"pool",   "active", "suspect", "draining", "left out",
                                       "paused", "left",   "gone",    "banned",   "other version"};
constexpr proto::JobState kOpenStates[] = {proto::JobState::Queued,   proto::JobState::Waiting,
                                           proto::JobState::Planning, proto::JobState::Loading,
                                           proto::JobState::Running,  proto::JobState::Stopping};

void add_peers(const Pool& pool, Metrics& metrics) {
  constexpr const char* kPeers = "weft_peers";
  metrics.declare_gauge(kPeers, "Peers by state, as `weft peers` shows them.");
  std::map<std::string, int> counts;
  for (const char* state : kPeerStates) counts[state] = 0;
  for (const auto& [id, peer] : pool.peers()) ++counts[pool.state_of(peer)];
  for (const auto& [state, count] : counts) metrics.set(kPeers, count, {{"state", state}});
}

void add_jobs(const JobBook& book, Metrics& metrics) {
  metrics.declare_gauge("weft_jobs", "Jobs that have not ended, by state.");
  metrics.declare_gauge("weft_job_step", "The last step that is committed, of jobs that have not ended.");
  std::map<std::string, int> counts;
  for (const proto::JobState state : kOpenStates) counts[std::string(to_string(state))] = 0;
  for (const auto& [number, job] : book.jobs()) {
    ++counts[std::string(to_string(job.state))];
    metrics.set("weft_job_step", static_cast<double>(job.step), {{"job", job.text()}});
  }
  for (const auto& [state, count] : counts) metrics.set("weft_jobs", count, {{"state", state}});
}

void add_disk(const DiskState& disk, Metrics& metrics) {
  if (disk.size.value == 0) return;
  const auto set = [&](const char* name, const char* help, Bytes bytes) {
    metrics.declare_gauge(name, help);
    metrics.set(name, static_cast<double>(bytes.value));
  };
  set("weft_blob_bytes", "What blobs take on the broker's disk.", disk.blobs);
  set("weft_disk_free_bytes", "What is free on the disk that the broker's data is on.", disk.free);
  set("weft_disk_size_bytes", "How large that disk is.", disk.size);
}

}  // namespace

Metrics Broker::metrics() const {
  Metrics metrics = step_.figures.metrics();
  add_peers(pool_, metrics);
  add_jobs(book_, metrics);
  add_disk(step_.disk, metrics);
  metrics.declare_gauge("weft_build_info", "Which weft this is; the value is 1.");
  metrics.set(
      "weft_build_info", 1,
      {{"version", options_.software},
       {"role", "broker"},
       {"protocol", std::to_string(proto::kProtocolMajor) + "." + std::to_string(proto::kProtocolMinor)}});
  return metrics;
}

// What it sent over its links since the last report. The plan says who is at the other end.
void Broker::count(const Peer& peer, const proto::StepReport& report) {
  if (!report.updated || !peer.works_on(report.run)) return;
  const Job* job = book_.find(report.run);
  const Crew* crew = job != nullptr ? job->crew() : nullptr;
  for (const proto::LinkUse& use : report.links) {
    const auto other = crew != nullptr ? crew->plan->find(use.seat) : std::nullopt;
    const Peer* to = other ? pool_.find(crew->plan->stages[*other].peer) : nullptr;
    if (to != nullptr && use.bytes_sent > 0)
      step_.figures.on_sent(report.run, peer.name, to->name, use.bytes_sent);
  }
}

}  // namespace weft::broker
