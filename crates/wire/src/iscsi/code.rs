//! Enumerations of RFC 7143. All are open: a value without a name stays representable.

open_enum! {
    /// The six opcode bits of a header's first byte (RFC 7143 §11.2.1.2).
    Opcode(u8) {
        /// Initiator's ping, or its response to a ping.
        NopOut = 0x00,
        /// SCSI command.
        ScsiCommand = 0x01,
        /// Task management request.
        TaskManagementRequest = 0x02,
        /// Login request.
        LoginRequest = 0x03,
        /// Text request.
        TextRequest = 0x04,
        /// Data for a write.
        DataOut = 0x05,
        /// Logout request.
        LogoutRequest = 0x06,
        /// Request for retransmission.
        SnackRequest = 0x10,
        /// Target's ping, or its response to a ping.
        NopIn = 0x20,
        /// SCSI response.
        ScsiResponse = 0x21,
        /// Task management response.
        TaskManagementResponse = 0x22,
        /// Login response.
        LoginResponse = 0x23,
        /// Text response.
        TextResponse = 0x24,
        /// Data of a read.
        DataIn = 0x25,
        /// Logout response.
        LogoutResponse = 0x26,
        /// Ready to transfer.
        R2t = 0x31,
        /// Asynchronous message.
        AsyncMessage = 0x32,
        /// Reject.
        Reject = 0x3f,
    }
}

open_enum! {
    /// A login stage, CSG or NSG (RFC 7143 §11.12.3).
    Stage(u8) {
        /// SecurityNegotiation.
        Security = 0,
        /// LoginOperationalNegotiation.
        Operational = 1,
        /// FullFeaturePhase.
        FullFeature = 3,
    }
}

open_enum! {
    /// Status-Class and Status-Detail of a login response (RFC 7143 §11.13.5).
    LoginStatus(u16) {
        /// The login continues or is complete.
        Success = 0x0000,
        /// The target moved temporarily.
        TargetMovedTemporarily = 0x0101,
        /// The target moved permanently.
        TargetMovedPermanently = 0x0102,
        /// An error of the initiator without a code of its own.
        InitiatorError = 0x0200,
        /// The initiator failed to authenticate.
        AuthenticationFailure = 0x0201,
        /// The initiator may not use this target.
        AuthorizationFailure = 0x0202,
        /// There is no such target.
        NotFound = 0x0203,
        /// The target was removed.
        TargetRemoved = 0x0204,
        /// The initiator and the target have no common version.
        UnsupportedVersion = 0x0205,
        /// Too many connections on this session.
        TooManyConnections = 0x0206,
        /// A mandatory key is missing.
        MissingParameter = 0x0207,
        /// The target rejects this connection for the session.
        CannotIncludeInSession = 0x0208,
        /// The target does not support this type of session.
        SessionTypeNotSupported = 0x0209,
        /// The session that the connection wants to join does not exist.
        SessionDoesNotExist = 0x020a,
        /// The request is not permitted during login.
        InvalidDuringLogin = 0x020b,
        /// An error of the target without a code of its own.
        TargetError = 0x0300,
        /// The target is not in service.
        ServiceUnavailable = 0x0301,
        /// The target has too few resources.
        OutOfResources = 0x0302,
    }
}

open_enum! {
    /// The function of a task management request (RFC 7143 §11.5.1).
    TaskManagementFunction(u8) {
        /// Abort the task that the referenced tag names.
        AbortTask = 1,
        /// Abort the tasks of this nexus on the unit.
        AbortTaskSet = 2,
        /// Clear the auto contingent allegiance.
        ClearAca = 3,
        /// Abort the tasks of all nexuses on the unit.
        ClearTaskSet = 4,
        /// Reset the unit.
        LogicalUnitReset = 5,
        /// Reset the target.
        TargetWarmReset = 6,
        /// Reset the target and close all its sessions.
        TargetColdReset = 7,
        /// Move a task to this connection.
        TaskReassign = 8,
        /// Query whether the task exists.
        QueryTask = 9,
        /// Query whether the nexus has tasks on the unit.
        QueryTaskSet = 10,
        /// Reset the nexus.
        ItNexusReset = 11,
        /// Query whether the unit has a unit attention to report.
        QueryAsynchronousEvent = 12,
    }
}

open_enum! {
    /// The response to a task management request (RFC 7143 §11.6.1).
    TaskManagementResponse(u8) {
        /// Done.
        FunctionComplete = 0,
        /// The task does not exist.
        TaskDoesNotExist = 1,
        /// The unit does not exist.
        LunDoesNotExist = 2,
        /// The task still belongs to another connection.
        TaskStillAllegiant = 3,
        /// Reassignment is not supported.
        ReassignNotSupported = 4,
        /// The function is not supported.
        FunctionNotSupported = 5,
        /// The function is not authorised.
        FunctionAuthorizationFailed = 6,
        /// The response to the query is yes (RFC 7144 §6.2).
        FunctionSucceeded = 7,
        /// Refused.
        FunctionRejected = 255,
    }
}

open_enum! {
    /// The reason why the target rejects a PDU (RFC 7143 §11.17.1).
    RejectReason(u8) {
        /// Data digest error.
        DataDigestError = 0x02,
        /// SNACK rejected.
        SnackReject = 0x03,
        /// Protocol error.
        ProtocolError = 0x04,
        /// Command not supported.
        CommandNotSupported = 0x05,
        /// Too many immediate commands.
        ImmediateCommandReject = 0x06,
        /// A task with this tag is in progress.
        TaskInProgress = 0x07,
        /// Invalid data acknowledgement.
        InvalidDataAck = 0x08,
        /// A field has an invalid value.
        InvalidPduField = 0x09,
        /// The target has no resources for a long operation.
        LongOperationReject = 0x0a,
        /// The target accepts only a logout.
        WaitingForLogout = 0x0c,
    }
}

open_enum! {
    /// The object that a logout closes (RFC 7143 §11.14.1).
    LogoutReason(u8) {
        /// The session.
        CloseSession = 0,
        /// One connection.
        CloseConnection = 1,
        /// One connection, whose tasks move to another.
        RemoveForRecovery = 2,
    }
}

open_enum! {
    /// The response to a logout (RFC 7143 §11.15.1).
    LogoutResponse(u8) {
        /// Closed.
        Closed = 0,
        /// There is no connection with this CID.
        CidNotFound = 1,
        /// Recovery is not supported.
        RecoveryNotSupported = 2,
        /// The clean-up failed.
        CleanupFailed = 3,
    }
}

open_enum! {
    /// The event of an asynchronous message (RFC 7143 §11.9.1).
    AsyncEvent(u8) {
        /// A SCSI event, with sense data.
        ScsiEvent = 0,
        /// The target requests a logout.
        LogoutRequest = 1,
        /// The target will drop the connection.
        ConnectionDrop = 2,
        /// The target will drop the session.
        SessionDrop = 3,
        /// The target requests a negotiation.
        NegotiationRequest = 4,
        /// The target terminates all tasks of the unit.
        TasksTerminating = 5,
    }
}
