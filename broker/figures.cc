#include "broker/figures.h"

namespace weft::broker {

namespace {
constexpr const char* kSent = "weft_link_sent_bytes_total";
}

Figures::Figures() {
  counted_.declare_histogram("weft_step_seconds", "Time from a training step to the next, of all jobs.",
                             seconds_bounds());
  counted_.declare_counter(
      "weft_recoveries_total",
      "Runs that lost a peer or made no progress, and went back to a copy of their state.");
  counted_.add("weft_recoveries_total", 0);
  counted_.declare_counter(
      kSent, "Bytes of tensors that one peer's stage sent another's, of jobs that have not ended.");
}

void Figures::on_sent(proto::JobNumber job, const std::string& from, const std::string& to, uint64_t bytes) {
  std::pair<std::string, std::string> ends{from, to};
  if (links_.size() >= kLinksMax && !links_.contains(ends)) ends = {"other", "other"};
  Link& link = links_[ends];
  link.bytes += static_cast<double>(bytes);
  link.jobs.insert(job);
}

void Figures::forget(proto::JobNumber job) {
  for (auto at = links_.begin(); at != links_.end();) {
    at->second.jobs.erase(job);
    at = at->second.jobs.empty() ? links_.erase(at) : std::next(at);
  }
}

Metrics Figures::metrics() const {
  Metrics all = counted_;
  for (const auto& [ends, link] : links_)
    all.add(kSent, link.bytes, {{"from", ends.first}, {"to", ends.second}});
  return all;
}

}  // namespace weft::broker
