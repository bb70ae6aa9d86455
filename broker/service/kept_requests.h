// The streams that callers of the door have asked for, and what they asked under a key, on the disk, so that
// a broker that comes back opens them again. A thread of its own writes: all that has come meanwhile is made
// durable at once. What cannot be written is served all the same, and lost with this process, for an answer
// now is worth more than one that would outlive a crash.
//
// Bounds: kRequestsMax requests with kTokensMax tokens; the oldest that have ended go first, and what there
// is no room for is not kept. A request is removed a minute after its end, and what no job answers any more
// kUnclaimed after the start.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/metrics.h"
#include "base/mutex.h"
#include "base/units.h"
#include "broker/store/request_store.h"
#include "net/worker.h"
#include "serve/service/request_keeper.h"

namespace weft::broker {

class KeptRequests final : public std::enable_shared_from_this<KeptRequests> {
 public:
  static constexpr size_t kRequestsMax = 4096;
  static constexpr size_t kTokensMax = size_t{32} << 20;
  static constexpr Duration kPatience = std::chrono::seconds(5);  // with the disk, until an answer begins
  static constexpr Duration kUnclaimed = std::chrono::minutes(10);
  static constexpr int64_t kKeptMs = 60'000;  // behind a request's end
  using Log = std::function<void(const std::string& line)>;

  // A damaged file is put aside, as NAME.damaged. Where none can be opened it says so, and keeps nothing.
  static std::shared_ptr<KeptRequests> open(const std::filesystem::path& file, Log log,
                                            const RequestStoreOptions& options = {});
  KeptRequests(std::unique_ptr<RequestStore> store, Log log);  // no store: nothing is kept
  ~KeptRequests();                                             // what has come is written

  std::shared_ptr<serve::RequestKeeper> of(proto::JobNumber job);

  // Those of an earlier process that are to be opened again now: they had not ended, or were asked for. Each
  // until opened() is said of it.
  std::vector<serve::KeptRequest> to_open(proto::JobNumber job) const;
  void opened(const std::string& id);
  // Whether it waits to be opened. If so it is, as soon as its job answers.
  bool want(const std::string& id);
  bool want_once(const std::string& name);  // the same, by the name of its key
  void withdraw(proto::JobNumber job);      // it answers no more

  void tick(Instant now);  // about once a second
  Metrics metrics() const;

 private:
  class OfJob;
  struct Kept {
    size_t tokens = 0;
    std::optional<int64_t> ended_unix_ms;
  };
  struct Waiting {
    std::optional<Instant> since{};  // at the first tick
    std::function<void()> done;
  };
  struct Earlier {
    proto::JobNumber job = 0;
    serve::KeptRequest request;
    bool is_wanted = false;  // by itself, or by who asked
  };

  void load();
  void keep(proto::JobNumber job, serve::KeptRequest request, std::function<void()> done);
  void end(const std::string& id);
  bool make_room(size_t tokens) WEFT_REQUIRES(mutex_);
  void forget(const std::string& id) WEFT_REQUIRES(mutex_);
  void change(RequestChange change) WEFT_REQUIRES(mutex_);
  void write_soon() WEFT_REQUIRES(mutex_);
  void write();
  std::vector<std::function<void()>> settle(std::vector<RequestChange> changes, const Status& written);
  void lose(const std::string& id) WEFT_REQUIRES(mutex_);
  std::vector<std::function<void()>> late(Instant now);
  void fold();

  const Log log_;
  const std::unique_ptr<RequestStore> store_;  // the worker's, once there is one
  mutable Mutex mutex_;
  std::map<std::string, Kept> kept_ WEFT_GUARDED_BY(mutex_);
  std::set<std::pair<int64_t, std::string>> ended_ WEFT_GUARDED_BY(mutex_);  // the oldest first
  std::map<std::string, Earlier> earlier_ WEFT_GUARDED_BY(mutex_);
  std::vector<RequestChange> changes_ WEFT_GUARDED_BY(mutex_);      // that are not written
  std::map<std::string, Waiting> waiting_ WEFT_GUARDED_BY(mutex_);  // until they are
  size_t tokens_ WEFT_GUARDED_BY(mutex_) = 0;
  bool is_writing_ WEFT_GUARDED_BY(mutex_) = false, was_removed_ WEFT_GUARDED_BY(mutex_) = false;
  bool is_failing_ WEFT_GUARDED_BY(mutex_) = false;
  Instant began_ WEFT_GUARDED_BY(mutex_){}, folded_ WEFT_GUARDED_BY(mutex_){};
  Metrics metrics_ WEFT_GUARDED_BY(mutex_);
  std::unique_ptr<net::Worker> worker_;
};

}  // namespace weft::broker
