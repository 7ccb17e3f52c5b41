//! Requests as data, for every front end, one at a time or in batches.

use spillway_types::{Answer, Request};

use crate::error::Error;
use crate::store::Store;

impl Store {
    /// Executes one request.
    pub fn submit(&self, request: &mut Request<'_>) -> Answer<Error> {
        match request {
            Request::Put { pool, key, value } => Answer::Put(self.put(*pool, *key, value)),
            Request::Get { pool, key, value } => {
                self.get(*pool, *key, value).map_or_else(Answer::Failed, Answer::Get)
            }
            Request::FlushPage { pool, key } => Answer::Flushed(u64::from(self.flush(*pool, *key))),
            Request::FlushObject { pool, object } => {
                Answer::Flushed(self.flush_object(*pool, *object))
            }
            Request::Exists { pool, key } => Answer::Exists(self.exists(*pool, *key)),
            Request::CreatePool { client, spec } => {
                self.create_pool(*client, *spec).map_or_else(Answer::Failed, Answer::Pool)
            }
            Request::JoinPool { client, uuid } => {
                self.join_pool(*client, *uuid).map_or_else(Answer::Failed, Answer::Pool)
            }
            Request::DestroyPool { pool } => {
                self.destroy_pool(*pool).map_or_else(Answer::Failed, |()| Answer::Destroyed)
            }
            Request::LeavePool { pool } => {
                self.leave_pool(*pool).map_or_else(Answer::Failed, |()| Answer::Destroyed)
            }
            Request::Statistics { client } => {
                self.statistics(*client).map_or_else(Answer::Failed, Answer::Statistics)
            }
        }
    }

    /// Executes requests in order. Each answer goes to its request's index; requests beyond the end
    /// of `answers` are not executed. Returns how many were.
    pub fn submit_batch(
        &self,
        requests: &mut [Request<'_>],
        answers: &mut [Answer<Error>],
    ) -> usize {
        for (request, answer) in requests.iter_mut().zip(answers.iter_mut()) {
            *answer = self.submit(request);
        }
        requests.len().min(answers.len())
    }
}
