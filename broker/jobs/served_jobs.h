// Jobs that serve a model: which of two has a name that both want, and what is said of them outside as it
// changes: whether requests can be taken, and by whom.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "broker/jobs/job_book.h"

namespace weft::broker {

class ServedJobs {
 public:
  ServedJobs(Step& step, JobBook& book) : step_(step), book_(book) {}

  // The job that serves under the name that this one wants, or came before it; nothing: it may have it.
  std::optional<proto::JobNumber> has_name_of(const Job& job) const;
  // Says what has changed.
  void update();

 private:
  struct Said {
    proto::PlanVersion plan_version = 0;
    std::optional<PeerId> entry{};
    std::string unavailable{};
    bool operator==(const Said&) const = default;
  };
  static Said state_of(const Job& job);
  void say(const Job& job, Said said);

  Step& step_;
  JobBook& book_;
  std::map<proto::JobNumber, Said> said_;
};

}  // namespace weft::broker
