// The core's desk of feeds: which are open to gates, and which are still being made known. The data of a run
// that goes on after a restart is read beside; what peers ask for meanwhile waits. The run may be placed
// again meanwhile, under another key, and may end.
#pragma once

#include <map>

#include "broker/service/gate_book.h"
#include "broker/service/job_feeds.h"

namespace weft::broker {

class FeedOpenings {
 public:
  // Both outlive this.
  FeedOpenings(const JobFeeds& known, GateBook& gates) : known_(known), gates_(gates) {}

  // True: nobody knows its data yet, so that it is to be opened, and on_opened() told.
  bool open(const OpenFeed& feed);
  // False: it could not be opened, and the gates know.
  bool on_opened(proto::JobNumber job, const Status& opened);
  void close(proto::JobNumber job) { gates_.close_feed(job); }
  void forget(proto::JobNumber job) { opening_.erase(job); }  // it is over

 private:
  const JobFeeds& known_;
  GateBook& gates_;
  std::map<proto::JobNumber, proto::Secret> opening_;  // with their newest keys
};

}  // namespace weft::broker
