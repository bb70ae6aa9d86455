#include "cli/fetched_record.h"

#include <utility>

#include "cli/follow.h"
#include "cli/report.h"
#include "cli/results.h"
#include "train/outer_record.h"

namespace weft::cli {
namespace {

class Silent : public Report {
 public:
  void show_at(const RunEvent&, int64_t) override {}
  bool is_unread() const override { return false; }
};

}  // namespace

FetchedRecord fetched_record(std::optional<storage::OuterRecord> heading,
                             const std::vector<replicas::Begun>& plans, uint64_t steps) {
  if (!heading && plans.empty()) return {};
  if (!heading)
    return {{},
            "the job came from an earlier version of weft, which does not say what a record of its rounds "
            "begins with"};
  if (plans.empty()) return {{}, "the broker does not say who was to make which steps"};
  // The model travelled before its broker chose what the job leaves open; shares stand in each round.
  replicas::ReplicaTerms terms = plans.front().local.terms;
  if (heading->sync.find("shares:") == std::string::npos) terms.shares.clear();
  heading->sync = train::describe_sync(terms);
  heading->rounds = rounds_of(plans, steps);
  return {std::move(heading), {}};
}

Result<RecordWritten> write_fetched_record(BrokerCall& session, const proto::JobResult& result,
                                           const std::filesystem::path& output) {
  WEFT_TRY(auto heading, record_of(result));
  // Steps are events, too: without a heading the first plan is enough to tell.
  Silent silent;
  WEFT_TRY(const Followed followed, follow_job(*session.access, session.client, result.job,
                                               {.follow = false, .ends_planned = !heading}, silent));
  FetchedRecord fetched = fetched_record(std::move(heading), followed.plans, result.step);
  if (!fetched.record) return RecordWritten{{}, std::move(fetched.why_none)};
  storage::OuterRecordWriter writer;
  const std::filesystem::path path = train::record_file(output);
  WEFT_TRY_STATUS(writer.begin(path, *fetched.record));
  return RecordWritten{path, {}};
}

}  // namespace weft::cli
