#include "broker/service/feed_openings.h"

namespace weft::broker {

bool FeedOpenings::open(const OpenFeed& feed) {
  const auto under_way = opening_.find(feed.job);
  if (under_way == opening_.end() && (!feed.submission || known_.find(feed.job))) {
    gates_.set_feed(feed.job, FeedOpened{feed.job, feed.data_key});
    return false;
  }
  gates_.set_feed(feed.job, FeedExpected{feed.job, feed.data_key});
  return opening_.insert_or_assign(feed.job, feed.data_key).second;
}

bool FeedOpenings::on_opened(proto::JobNumber job, const Status& opened) {
  const auto done = opening_.extract(job);
  if (!done || !gates_.has_feed(job)) return true;  // the job is over, or the feed was closed meanwhile
  if (opened)
    gates_.set_feed(job, FeedOpened{job, done.mapped()});
  else
    gates_.close_feed(job);
  return opened.has_value();
}

}  // namespace weft::broker
