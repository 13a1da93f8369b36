//! Enumerations of RFC 7143. All are open: a value that is not named stays representable.

open_enum! {
    /// The six opcode bits of a header's first byte (RFC 7143 §11.2.1.2).
    Opcode(u8) {
        /// Initiator ping or answer to one.
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
        /// Target ping or answer to one.
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
        /// Login goes on or is done.
        Success = 0x0000,
        /// The target moved for now.
        TargetMovedTemporarily = 0x0101,
        /// The target moved for good.
        TargetMovedPermanently = 0x0102,
        /// Some error of the initiator.
        InitiatorError = 0x0200,
        /// The initiator could not prove who it is.
        AuthenticationFailure = 0x0201,
        /// The initiator may not use this target.
        AuthorizationFailure = 0x0202,
        /// There is no such target.
        NotFound = 0x0203,
        /// The target was removed.
        TargetRemoved = 0x0204,
        /// No version in common.
        UnsupportedVersion = 0x0205,
        /// Too many connections on this session.
        TooManyConnections = 0x0206,
        /// A key that must be sent was not.
        MissingParameter = 0x0207,
        /// The target does not take this connection into the session.
        CannotIncludeInSession = 0x0208,
        /// The target does not support this type of session.
        SessionTypeNotSupported = 0x0209,
        /// The session that the connection wants to join does not exist.
        SessionDoesNotExist = 0x020a,
        /// A request that has no place in a login.
        InvalidDuringLogin = 0x020b,
        /// Some error of the target.
        TargetError = 0x0300,
        /// The target is not in service.
        ServiceUnavailable = 0x0301,
        /// The target has no room.
        OutOfResources = 0x0302,
    }
}

open_enum! {
    /// What a task management request asks for (RFC 7143 §11.5.1).
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
        /// Whether the task exists.
        QueryTask = 9,
        /// Whether the nexus has tasks on the unit.
        QueryTaskSet = 10,
        /// Reset the nexus.
        ItNexusReset = 11,
        /// Whether the unit has an attention to tell.
        QueryAsynchronousEvent = 12,
    }
}

open_enum! {
    /// The answer to a task management request (RFC 7143 §11.6.1).
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
        /// The query is answered with yes (RFC 7144 §6.2).
        FunctionSucceeded = 7,
        /// Refused.
        FunctionRejected = 255,
    }
}

open_enum! {
    /// Why a PDU was rejected (RFC 7143 §11.17.1).
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
        /// A field has a value that it may not have.
        InvalidPduField = 0x09,
        /// No room for a long operation.
        LongOperationReject = 0x0a,
        /// Only a logout is taken now.
        WaitingForLogout = 0x0c,
    }
}

open_enum! {
    /// What a logout closes (RFC 7143 §11.14.1).
    LogoutReason(u8) {
        /// The session.
        CloseSession = 0,
        /// One connection.
        CloseConnection = 1,
        /// One connection, whose tasks are moved.
        RemoveForRecovery = 2,
    }
}

open_enum! {
    /// The answer to a logout (RFC 7143 §11.15.1).
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
    /// What an asynchronous message tells (RFC 7143 §11.9.1).
    AsyncEvent(u8) {
        /// A SCSI event, with sense data.
        ScsiEvent = 0,
        /// The target asks for a logout.
        LogoutRequest = 1,
        /// The target will drop the connection.
        ConnectionDrop = 2,
        /// The target will drop the session.
        SessionDrop = 3,
        /// The target asks for a negotiation.
        NegotiationRequest = 4,
        /// All tasks of the unit end.
        TasksTerminating = 5,
    }
}
