#include "broker/jobs/served_jobs.h"

#include <utility>

namespace weft::broker {

namespace {

// For those who ask for tokens, who need not know the pool's machines: the first part of the reason says what
// lacks, the others who could not be had.
std::string what_lacks(const Job& job) {
  if (job.stop_requested) return "it is being stopped";
  if (job.running() != nullptr) return "its first stage has yet to come back";
  if (std::holds_alternative<phase::Planning>(job.phase)) return "it is being planned";
  if (!std::holds_alternative<phase::Waiting>(job.phase)) return "its stages are being loaded";
  return job.reason.substr(0, job.reason.find(';'));
}

}  // namespace

std::optional<proto::JobNumber> ServedJobs::has_name_of(const Job& job) const {
  if (!job.serves() || job.serving.has_name) return std::nullopt;
  std::optional<proto::JobNumber> first;
  for (const auto& [number, other] : book_.jobs()) {
    if (other.has_ended() || other.serving.model.name != job.serving.model.name) continue;
    if (other.serving.has_name) return number;
    if (!first) first = number;
  }
  return first == job.number() ? std::nullopt : first;
}

ServedJobs::Said ServedJobs::state_of(const Job& job) {
  Said said{.plan_version = job.plan_version};
  const phase::Running* at = job.running();
  const auto entry = at != nullptr ? at->crew.plan->find(plan::Seat{}) : std::nullopt;
  if (entry && !at->over && !job.stop_requested && at->crew.stages[*entry].here)
    said.entry = at->crew.plan->stages[*entry].peer;
  else
    said.unavailable = what_lacks(job);
  return said;
}

void ServedJobs::say(const Job& job, Said said) {
  step_.effect(PublishServed{job.number(), ServedState{.model = job.serving.model,
                                                       .submission = job.submitted.submission,
                                                       .created = job.submitted.unix_ms / 1000,
                                                       .plan_version = said.plan_version,
                                                       .entry = said.entry,
                                                       .unavailable = said.unavailable}});
  said_[job.number()] = std::move(said);
}

void ServedJobs::update() {
  step_.served = false;
  std::erase_if(said_, [&](const auto& entry) {
    if (book_.find(entry.first) != nullptr) return false;
    step_.effect(PublishServed{entry.first, std::nullopt});
    return true;
  });
  for (const auto& [number, job] : book_.jobs()) {
    if (!job.serves() || has_name_of(job)) continue;
    Said said = state_of(job);
    if (const auto before = said_.find(number); before == said_.end() || before->second != said)
      say(job, std::move(said));
  }
}

}  // namespace weft::broker
