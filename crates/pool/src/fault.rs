//! Deliberate faults, which tests put into a pool to show that the checker finds them.

/// One deviation from the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Check 1: remote bounds are not checked.
    NoRemoteBounds,
    /// Check 1: local bounds are not checked.
    NoLocalBounds,
    /// Check 1: only the first element of a request is checked.
    FirstElementChecked,
    /// Check 1: the number of elements is not checked.
    ElementsUnbounded,
    /// Check 1: the rights of the remote region are not checked.
    NoRights,
    /// Check 1: requests may name regions of other users.
    NoOwner,
    /// Check 1: requests may name regions of other nodes.
    NoNode,
    /// Check 2: more requests are posted than the send queue takes.
    SendQueueUnbounded,
    /// Check 2: completions that were not polled take no place.
    CompletionsUncounted,
    /// Check 2: there are more queue pairs than the completion queue can serve.
    CompletionQueueUnreserved,
    /// Check 2: a virtual queue pair has as many requests posted as it likes.
    InFlightUnbounded,
    /// A virtual queue pair may be ahead of its share by any number of octets.
    LeadUnbounded,
    /// A request is posted at once while others wait for a turn.
    TurnsSkipped,
    /// A request that is posted at once is not booked when something else happens than its
    /// completion.
    LoneForgotten,
    /// One that is booked does not count as a use of its memory.
    LoneUsesNothing,
    /// The completion of one is given to whichever user polls.
    LonePolledByAny,
    /// The request behind one has the same number.
    LoneNumberKept,
    /// A completion in error of one is taken for a success.
    LoneAlwaysSucceeds,
    /// Check 3: a completion goes to whichever virtual queue pair has the slot.
    VirtualGenerationIgnored,
    /// Check 3: completions of a queue pair that was destroyed count for its replacement.
    PhysicalGenerationIgnored,
    /// Only the request whose completion arrives is retired, not those before it.
    OneRetired,
    /// The last request of a burst is signaled only if its user asked for it.
    TailUnsignaled,
    /// Whatever its user asked for, a request has a completion.
    SignaledForAll,
    /// After an unknown outcome, everything is repeated.
    EffectsRepeated,
    /// After a refusal, all virtual queue pairs of the queue pair fail.
    InnocentFail,
    /// A failed virtual queue pair keeps its requests that were not posted.
    QueueKept,
    /// The request that failed is flushed like those behind it.
    CauseFlushed,
    /// Requests wait for their replacement forever.
    NotRepeated,
    /// A node that does not answer ends requests that were not sent, to other nodes.
    OtherNodesFail,
    /// When a node does not answer, only the requests of the virtual queue pair whose request
    /// failed count as sent to it.
    NeighboursRepeated,
    /// A work request goes to the node of the one before it.
    NodeKept,
    /// Queue pairs that refuse their first work request are replaced, again and again.
    RefusalsRepeated,
    /// There are more initiators than configured.
    InitiatorsUnbounded,
    /// Only the memory of the first element of a request is released.
    FirstElementReleased,
    /// A request that is refused goes on using the memory of its elements.
    RefusedUseMemory,
    /// Memory is released while posted requests use it.
    ReleasedEarly,
    /// Nodes are removed to which virtual queue pairs are open.
    NodesRemovedInUse,
    /// Another node is removed than the least recently used one.
    NodesRemovedInAnyOrder,
    /// A connection that has members is taken for another node.
    ConnectionsTakenInUse,
    /// A connection is not destroyed before its place is taken for another node.
    ConnectionsKept,
    /// A Send is posted without a Receive of the other end's user.
    SendsUncovered,
    /// A Send is posted without a buffer of the node.
    BuffersUncounted,
    /// A Send may take the buffers that are kept for messages of the pool itself.
    ReserveUsed,
    /// Sends that have waited for buffers do not go on when there are some.
    StarvedForgotten,
    /// The other end is not told of Receives.
    ReceivesUnannounced,
    /// A Send that is repeated is delivered again.
    DuplicatesDelivered,
    /// A message is for whichever virtual queue pair it names.
    EndsUnchecked,
    /// One that asks again, after a failure, is accepted again.
    OpenedTwice,
    /// Other ends are not told again, after a failure, what they have to know.
    EndsNotToldAgain,
    /// The other end of one that ends is not told.
    CloseUntold,
    /// Receives are not flushed when the other end has ended.
    ReceivesKept,
    /// An end that connects itself takes the request of the other one, whichever goes before.
    CrossingTaken,
    /// An end that connects itself refuses the request of the other one, whichever goes before.
    CrossingRefused,
    /// A message that is longer than its Receive is cut.
    LongMessagesCut,
    /// The last segment of a Send is posted before the other end has taken the Send.
    LastSegmentEarly,
    /// Segments that are repeated count again.
    SegmentsCountedTwice,
    /// The other end is not told again, after a failure, that its Send is taken.
    TakenNotToldAgain,
    /// Segments in flight do not count as uses of their memory.
    SegmentsUseNothing,
    /// A Send that the other end has refused ends as if that had been closed.
    RefusalUntold,
    /// After a failure, a Send goes on behind its segments that were posted.
    SegmentsNotRepeated,
    /// A message that may have arrived keeps its number, and the next one has another.
    NumbersNotTakenBack,
    /// A message that has come before takes a buffer of the share again.
    NumbersIgnored,
    /// Messages of the pool itself that may be lost with their initiator are not sent again.
    OwnNotRepeated,
    /// The number of buffers in messages that may be lost with their initiator is not told again.
    CountsNotRepeated,
    /// Exchanges with a node go on that has not taken a message.
    UntoldKept,
    /// Messages of exchanges that have ended are taken.
    TokensKept,
    /// A question that was late is taken for a new one.
    LateQuestionsTaken,
    /// A virtual queue pair switches while it has requests in flight.
    SwitchedInFlight,
    /// A virtual queue pair keeps the turn that it has at the queue pair which it leaves.
    SwitchTurnsKept,
    /// The requests of a connection that has failed stay with it.
    SwitchForgotten,
    /// A node that is not used any more keeps its connection.
    SwitchedForever,
    /// There are more connections than configured.
    SwitchUnbounded,
    /// A node that cannot be connected to is connected to again after each window.
    SwitchRetriedAtOnce,
    /// The requests of a virtual queue pair that was about to switch wait for a connection that
    /// has failed.
    SwitchNotCancelled,
    /// What a connection that ends may have executed is posted again over an initiator.
    SwitchRepeated,
}

urdma_types::faults!(pub(crate) Faults of Fault);
